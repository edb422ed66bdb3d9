"""An awaitable that has already run up to its first wait: most never come to one, and need no guard then."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any


class Begun:
    """Runs at once, in the caller's own task. If it `is_over`, `value` is what it returned; else await it."""

    __slots__ = ("_first", "_rest", "is_over", "value")

    def __init__(self, thing: Awaitable[Any]) -> None:
        self._rest = thing.__await__()
        self._first: Any = None
        self.is_over = False
        self.value: Any = None
        try:
            self._first = next(self._rest)
        except StopIteration as done:
            self.is_over, self.value = True, done.value

    def __await__(self) -> Generator[Any, Any, Any]:
        waited_for = self._first
        while True:
            try:
                try:
                    sent = yield waited_for
                except BaseException as error:
                    waited_for = self._rest.throw(error)
                else:
                    waited_for = self._rest.send(sent)
            except StopIteration as done:
                return done.value
