"""The outside world of an installation: an independent count of what effects have changed in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from endwell.runtime.current import CURRENT_TURN


class Fates:
    """Faults inside the functions of steps and effects. This class has none."""

    def step_seconds(self) -> float:
        """Return how much longer the next step's function takes, or raise."""
        return 0.0

    def effect_seconds(self, key: str) -> float:
        """Return how much longer an effect's function takes."""
        return 0.0

    def before_change(self, pid: int, key: str) -> None:
        """Called just before the world changes; may kill the process."""

    def after_change(self, pid: int, key: str) -> None:
        """Called just after the world has changed; may kill the process, or raise."""


@dataclass
class Outside:
    """An independent sink. `calls` counts by effect key; `values` are the results of the first calls."""

    fates: Fates = field(default_factory=Fates)
    inside: Counter[int] = field(default_factory=Counter)
    on_change: Callable[[str, str], None] = lambda what, about: None
    calls: Counter[str] = field(default_factory=Counter)
    values: dict[str, Any] = field(default_factory=dict)
    repeatable: set[str] = field(default_factory=set)
    failed: Counter[str] = field(default_factory=Counter)
    on_run: Callable[[str, str, str], None] = lambda task_id, attempt_id, step: None

    def change(self, key: str, value: Any, *, pid: int = 0, repeatable: bool = False) -> Any:
        """Change the world under a key. A repeatable change may be asked for again; only the first counts."""
        self.fates.before_change(pid, key)
        if repeatable:
            self.repeatable.add(key)
        self.calls[key] += 1
        self.on_change("changes the world", key)
        found = self.values.setdefault(key, value)
        self.fates.after_change(pid, key)
        return found

    @contextmanager
    def enter(self, pid: int) -> Iterator[None]:
        """Count this process as inside an effect's function."""
        self.inside[pid] += 1
        try:
            yield
        finally:
            self.inside[pid] -= 1

    def find(self, key: str) -> Any:
        """Return the result of the first call under this key, or None."""
        return self.values.get(key)

    def repeated_keys(self) -> list[str]:
        """List the keys under which the world was changed more than once."""
        return sorted(key for key, n in self.calls.items() if n > 1 and key not in self.repeatable)

    def note_run(self, step: str) -> None:
        """Report that a step's function begins."""
        turn = CURRENT_TURN.get()
        self.on_run(turn.task_id if turn else "", turn.attempt_id if turn else "", step)

    def fails_again(self, times: int) -> bool:
        """Whether the running task has failed fewer times than this; counts one more failure."""
        turn = CURRENT_TURN.get()
        task_id = turn.task_id if turn else ""
        if self.failed[task_id] >= times:
            return False
        self.failed[task_id] += 1
        return True
