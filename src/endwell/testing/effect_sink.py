"""The world outside of an installation: what effects have changed in it, counted by nobody but itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from endwell.runtime.current import CURRENT_TURN

Noted = Callable[[str, str], None]


class Fates:
    """What happens to agents at moments that only their own functions see. Here: nothing."""

    def step_seconds(self) -> float:
        """How much longer the next step's function takes; it may raise instead."""
        return 0.0

    def effect_seconds(self, key: str) -> float:
        """How much longer the world takes to change."""
        return 0.0

    def before_change(self, pid: int, key: str) -> None:
        """The world is about to change; the process may die."""

    def after_change(self, pid: int, key: str) -> None:
        """The world has changed; the process may die, or hear an error."""


@dataclass
class Outside:
    """An independent sink. `calls` counts by effect key, `value` is what the first call brought about."""

    fates: Fates = field(default_factory=Fates)
    inside: Counter[int] = field(default_factory=Counter)
    noted: Noted = lambda what, about: None
    calls: Counter[str] = field(default_factory=Counter)
    values: dict[str, Any] = field(default_factory=dict)
    repeatable: set[str] = field(default_factory=set)
    failed: Counter[str] = field(default_factory=Counter)
    on_run: Callable[[str, str, str], None] = lambda task_id, attempt_id, step: None

    def change(self, key: str, value: Any, *, pid: int = 0, repeatable: bool = False) -> Any:
        """Change the world under a key. A repeatable one ignores all calls but the first."""
        self.fates.before_change(pid, key)
        if repeatable:
            self.repeatable.add(key)
        self.calls[key] += 1
        self.noted("changes the world", key)
        found = self.values.setdefault(key, value)
        self.fates.after_change(pid, key)
        return found

    @contextmanager
    def entered(self, pid: int) -> Iterator[None]:
        """A process is inside an effect's function."""
        self.inside[pid] += 1
        try:
            yield
        finally:
            self.inside[pid] -= 1

    def find(self, key: str) -> Any:
        """What a call under this key has brought about, or None."""
        return self.values.get(key)

    def doubled(self) -> list[str]:
        """Keys under which the world was changed more than once."""
        return sorted(key for key, n in self.calls.items() if n > 1 and key not in self.repeatable)

    def note_run(self, step: str) -> None:
        """A step's function begins."""
        turn = CURRENT_TURN.get()
        self.on_run(turn.task_id if turn else "", turn.attempt_id if turn else "", step)

    def fails_again(self, times: int) -> bool:
        """Whether the task that runs now has not yet failed so often."""
        turn = CURRENT_TURN.get()
        task_id = turn.task_id if turn else ""
        if self.failed[task_id] >= times:
            return False
        self.failed[task_id] += 1
        return True
