"""A cache of running tasks that attempts of this process hold, so that their rows are not read again.

It serves commands of the holder only; commands by others are decided on the row itself. If another process
moved the row, the version shows it when the batch is written.
"""

from __future__ import annotations

from endwell.model.status import RUNNING
from endwell.model.task import Task
from endwell.store.rows import TaskKey, Wanted, Writes

MOST_TASKS = 10_000
"""At most this many tasks are cached; beyond that all are dropped, which costs one read each."""


class RowCache:
    """Running tasks in their state after this process's last write."""

    def __init__(self) -> None:
        self._tasks: dict[TaskKey, Task] = {}

    def find_tasks(self, want: Wanted) -> dict[TaskKey, Task]:
        """Those of the wanted tasks that need not be read."""
        found: dict[TaskKey, Task] = {}
        if self._tasks:
            for key, attempt in want.attempts.items():
                task = self._tasks.get(key)
                if task is not None and task.attempt_id == attempt:
                    found[key] = task
        return found

    def remember_writes(self, writes: Writes) -> None:
        """Cache what a committed transaction wrote."""
        if len(self._tasks) > MOST_TASKS:
            self.forget()
        for task, _ in writes.moved:
            if task.status == RUNNING:
                self._tasks[task.namespace, task.id] = task
            else:
                self._tasks.pop((task.namespace, task.id), None)

    def forget(self) -> None:
        """Drop all tasks: another process moved one, or it is unknown whether a transaction was committed."""
        self._tasks.clear()
