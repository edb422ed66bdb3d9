"""Tasks that this process's own attempts hold: what is known of them need not be read again.

Only while nobody but the holder speaks of them: whatever somebody else asks about a task is decided on
the row itself. That another process moved the row meanwhile is noticed by the version, when writing.
"""

from __future__ import annotations

from endwell.model.status import RUNNING
from endwell.model.task import Task
from endwell.store.rows import TaskKey, Wanted, Writes

MOST = 10_000
"""Tasks kept in mind; beyond that all are forgotten, which costs one reading each."""


class RowCache:
    """Running tasks, as they stood after this process's last write."""

    def __init__(self) -> None:
        self._tasks: dict[TaskKey, Task] = {}

    def known(self, want: Wanted) -> dict[TaskKey, Task]:
        """Of the wanted tasks those that need not be read."""
        found: dict[TaskKey, Task] = {}
        if self._tasks:
            for key, attempt in want.attempts.items():
                task = self._tasks.get(key)
                if task is not None and task.attempt_id == attempt:
                    found[key] = task
        return found

    def note(self, writes: Writes) -> None:
        """What a transaction that took place made of them."""
        if len(self._tasks) > MOST:
            self.forget()
        for task, _ in writes.moved:
            if task.status == RUNNING:
                self._tasks[task.namespace, task.id] = task
            else:
                self._tasks.pop((task.namespace, task.id), None)

    def forget(self) -> None:
        """Somebody moved one of them, or it is not known what took place."""
        self._tasks.clear()
