"""Figures: what a run must reach, and the totals that it has reached so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a piece's output. `kinds` are names, and each counts once."""

    counts: dict[str, int] = {}
    kinds: dict[str, list[str]] = {}
    failed: tuple[str, ...] = ()


class Totals(msgspec.Struct, kw_only=True):
    """All lines so far. `begun` counts the pieces of each part that were started: their seeds are used up.

    `done` are finished pieces of parts that would only repeat themselves, and `sources` the source they ran
    with.
    """

    counts: dict[str, int] = {}
    kinds: dict[str, set[str]] = {}
    failed: list[str] = []
    begun: dict[str, int] = {}
    done: dict[str, set[int]] = {}
    sources: dict[str, str] = {}
    seconds: float = 0.0

    def add(self, line: Line) -> None:
        for name, number in line.counts.items():
            self.counts[name] = self.counts.get(name, 0) + number
        for name, kinds in line.kinds.items():
            self.kinds.setdefault(name, set()).update(kinds)
        self.failed += line.failed

    def reached(self, name: str) -> int:
        """Return a count, or the number of different kinds."""
        return len(self.kinds[name]) if name in self.kinds else self.counts.get(name, 0)

    def forget(self, name: str) -> None:
        """Forget what was reached of a figure."""
        self.counts.pop(name, None)
        self.kinds.pop(name, None)


class Figure(NamedTuple):
    """One row of the table. With `per`, the wanted number is a percentage of that other figure."""

    name: str
    says: str
    wanted: int
    per: str = ""

    def reached(self, totals: Totals) -> int:
        if not self.per:
            return totals.reached(self.name)
        whole = totals.reached(self.per)
        return 100 * totals.reached(self.name) // whole if whole else 0

    def is_reached(self, totals: Totals) -> bool:
        return self.reached(totals) >= self.wanted

    def row(self, totals: Totals) -> str:
        sign = " %" if self.per else ""
        verdict = "" if self.is_reached(totals) else "  TOO FEW"
        return f"{self.says:<58}{self.wanted:>12,}{sign}{self.reached(totals):>14,}{sign}{verdict}"


def table(figures: Sequence[Figure], totals: Totals) -> str:
    """Show wanted and reached figures, then every failure."""
    rows = [f"{'figure':<58}{'wanted':>12}{'reached':>14}", *(figure.row(totals) for figure in figures)]
    rows.append(f"{'anything that did not hold':<58}{0:>12}{len(totals.failed):>14,}")
    return "\n".join([*rows, *(f"\nDID NOT HOLD: {text}" for text in totals.failed)])


def is_good(figures: Sequence[Figure], totals: Totals) -> bool:
    """Whether nothing failed and every figure was reached."""
    return not totals.failed and all(figure.is_reached(totals) for figure in figures)
