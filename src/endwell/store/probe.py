"""Several questions asked as one statement: whether each has an answer, or the one value it asks for.

An idle process asks many small questions, nearly all of them in vain. Joined, they cost one statement, and
on PostgreSQL they share one reading of the server's clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self


class _Now:
    """Stands for the store's own clock among a question's parameters."""


NOW: Final = _Now()
Stamp = int
"""Tells one state of a store from the next; only good for being compared."""


class Probe(NamedTuple):
    """A named query and its parameters. A `value` is its one answer; else it is asked whether it has any."""

    name: str
    parameters: tuple[Any, ...]
    is_value: bool = False


class ProbeResult(dict[str, Any]):
    """The answers by name, as they were at `now`; `stamp` is the store's from just before."""

    def __init__(self, now: int, answers: Mapping[str, Any], stamp: Stamp | None = None) -> None:
        super().__init__(answers)
        self.now = now
        self.stamp = stamp

    @classmethod
    def of(cls, now: int, asked: Sequence[Probe], row: Sequence[Any], stamp: Stamp | None = None) -> Self:
        """The row that a joined statement gave."""
        return cls(now, dict(zip((ask.name for ask in asked), row, strict=True)), stamp)

    def any(self, *names: str) -> bool:
        """Whether one of these questions has an answer."""
        return any(self[name] for name in names)


class ProbeSql:
    """Joins a dialect's queries; parameter 1 of the whole is the clock's, as the dialect takes it."""

    def __init__(self, queries: Mapping[str, str], *, mark: str, clock: str, now: str) -> None:
        self._queries = queries
        self._mark = mark
        self._clock = clock
        self._now = now
        self._text = lru_cache(maxsize=100)(self._compose)

    def statement(self, asked: Sequence[Probe]) -> tuple[str, list[Any]]:
        """The statement, and its parameters after the clock's."""
        shape = tuple(
            (ask.name, ask.is_value, tuple(value is NOW for value in ask.parameters)) for ask in asked
        )
        return self._text(shape), [value for ask in asked for value in ask.parameters if value is not NOW]

    def _compose(self, shape: tuple[tuple[str, bool, tuple[bool, ...]], ...]) -> str:
        pieces, used = [], 1
        for name, is_value, are_now in shape:
            marks = []
            for is_now in are_now:
                used += not is_now
                marks.append(self._now if is_now else f"{self._mark}{used}")
            sql = self._numbered(self._queries[name], marks)
            pieces.append(f"({sql})" if is_value else f"EXISTS ({sql})")
        return f"{self._clock} {self._now}, {', '.join(pieces)}"

    def _numbered(self, sql: str, marks: list[str]) -> str:
        return re.sub(rf"{re.escape(self._mark)}(\d+)", lambda found: marks[int(found[1]) - 1], sql)
