"""One call of a function in a thread, and whether it is still running there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ThreadCall:
    """Each side sets its own mark before it looks at the other's, so that one of them sees the other."""

    __slots__ = ("_function", "has_begun", "is_left", "is_over")

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.has_begun = False
        self.is_left = False
        self.is_over = False

    @property
    def is_running(self) -> bool:
        """Whether the function has begun and has not returned."""
        return self.has_begun and not self.is_over

    @property
    def is_open(self) -> bool:
        """Whether the function is running, or may still begin."""
        return not self.is_over and (self.has_begun or not self.is_left)

    def stop_waiting(self) -> None:
        """Nothing waits for the call any more: if it has not begun, it never will."""
        self.is_left = True

    def run(self) -> Any:
        """Call the function, in its thread; not if nothing waits for it any more."""
        self.has_begun = True
        try:
            return None if self.is_left else self._function()
        except GeneratorExit as error:  # would close the coroutine that waits for it
            raise RuntimeError("the function raised GeneratorExit") from error
        finally:
            self.is_over = True
