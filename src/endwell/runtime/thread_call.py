"""One function in a thread, and whether it is still at work there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ThreadCall:
    """First each side makes its mark, then it looks for the other's."""

    __slots__ = ("_function", "has_begun", "is_left", "is_over")

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.has_begun = False
        self.is_left = False
        self.is_over = False

    @property
    def is_running(self) -> bool:
        """Whether the function is at work at this moment, for all we know."""
        return self.has_begun and not self.is_over

    @property
    def is_open(self) -> bool:
        """Whether the function is at work, or may still begin."""
        return not self.is_over and (self.has_begun or not self.is_left)

    def leave(self, _: object = None) -> None:
        """Nothing waits for it any more: if it has not begun, it never will."""
        self.is_left = True

    def run(self) -> Any:
        """In the thread; a call that was left before it began never begins."""
        self.has_begun = True
        try:
            return None if self.is_left else self._function()
        except GeneratorExit as error:  # would close the coroutine that waits for it
            raise RuntimeError("the function raised GeneratorExit") from error
        finally:
            self.is_over = True
