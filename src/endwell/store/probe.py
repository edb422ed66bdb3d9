"""Probes: several questions asked as one statement, each for whether it has an answer or for one value.

An idle process asks many small questions, nearly all in vain. Joined, they cost one statement, and on
PostgreSQL they share one reading of the server's clock. A store that has stamps need not be asked again while
its stamp is the same.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple, Self


class _Now:
    """Stands for the store's own clock among a question's parameters."""


NOW: Final = _Now()
Stamp = int
"""Tells one state of a store from the next; only good for being compared."""


class Probe(NamedTuple):
    """A named query and its parameters. It asks for one `value`, or else whether there is any row."""

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
    def from_row(
        cls, now: int, asked: Sequence[Probe], row: Sequence[Any], stamp: Stamp | None = None
    ) -> Self:
        """Make a result of the row that a joined statement returned."""
        return cls(now, dict(zip((probe.name for probe in asked), row, strict=True)), stamp)

    def has_any(self, *names: str) -> bool:
        """Whether one of these questions has an answer."""
        return any(self[name] for name in names)


class ProbedStore(ABC):
    """A store as far as it is probed."""

    has_stamps: ClassVar[bool] = False
    """Whether `stamp` usually has an answer. Such a store tells the time without a statement, too."""

    @abstractmethod
    async def probe(self, *asked: Probe) -> ProbeResult:
        """Ask several named queries as one statement; `NOW` among their parameters is the store's clock."""

    @abstractmethod
    async def now(self) -> int:
        """Return the time by the only clock for decisions, in microseconds."""

    def stamp(self) -> Stamp | None:
        """Return a sign of change that costs next to nothing; None when the store cannot say.

        While it is equal, every question has the answer that it had, but for what the clock changes.
        """
        return None


class CachedProbe:
    """A probe that is sent to the store only when its answers may have changed.

    `due` names the answer that says when time alone changes the others; None there is never.
    """

    def __init__(self, store: ProbedStore, *asked: Probe, due: str) -> None:
        self._store = store
        self.asked = asked
        self._due = due
        self.known: ProbeResult | None = None

    async def ask(self) -> ProbeResult:
        """Return the answers as of now."""
        self.known = await self._known_still() or await self._store.probe(*self.asked)
        return self.known

    def adopt(self, seen: ProbeResult) -> None:
        """Keep the answers of another probe that asked the same among other things."""
        self.known = seen

    def forget(self) -> None:
        """Send the next probe in any case."""
        self.known = None

    async def _known_still(self) -> ProbeResult | None:
        known, stamp = self.known, self._store.stamp()
        if known is None or stamp is None or stamp != known.stamp:
            return None
        now, due = await self._store.now(), known[self._due]
        is_due = due is not None and due <= now
        return None if is_due or now < known.now else ProbeResult(now, known, stamp)


class ProbeSql:
    """Joins a dialect's queries; parameter 1 of the whole is the clock's, as the dialect takes it."""

    def __init__(self, queries: Mapping[str, str], *, mark: str, clock: str, now: str) -> None:
        self._queries = queries
        self._mark = mark
        self._clock = clock
        self._now = now
        self._text = lru_cache(maxsize=100)(self._compose_text)

    def compose_sql(self, asked: Sequence[Probe]) -> tuple[str, list[Any]]:
        """Return the statement, and its parameters after the clock's."""
        shape = tuple(
            (probe.name, probe.is_value, tuple(value is NOW for value in probe.parameters)) for probe in asked
        )
        values = [value for probe in asked for value in probe.parameters if value is not NOW]
        return self._text(shape), values

    def _compose_text(self, shape: tuple[tuple[str, bool, tuple[bool, ...]], ...]) -> str:
        pieces, used = [], 1
        for name, is_value, are_now in shape:
            marks = []
            for is_now in are_now:
                used += not is_now
                marks.append(self._now if is_now else f"{self._mark}{used}")
            sql = self._place_parameters(self._queries[name], marks)
            pieces.append(f"({sql})" if is_value else f"EXISTS ({sql})")
        return f"{self._clock} {self._now}, {', '.join(pieces)}"

    def _place_parameters(self, sql: str, marks: list[str]) -> str:
        return re.sub(rf"{re.escape(self._mark)}(\d+)", lambda found: marks[int(found[1]) - 1], sql)
