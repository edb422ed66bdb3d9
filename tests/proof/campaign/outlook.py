"""The outlook of a soak: what is still missing, and how long that takes at the rate of the last run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tests.proof.campaign.figures import Figure, Totals
from tests.proof.campaign.plan import Plan


class Missing(NamedTuple):
    """The missing part of a figure. `hours` at this rate; None if this run added nothing to it."""

    figure: Figure
    part: str
    gained: int
    missing: int
    hours: float | None

    def row(self) -> str:
        hours = "no telling" if self.hours is None else f"{self.hours:,.2f}"
        return f"{self.figure.says:<58}{self.missing:>12,}{self.gained:>14,}{hours:>12}"


class Outlook:
    """Remembers the figures at the begin of a run, to compare them at its end."""

    def __init__(self, plan: Plan, totals: Totals) -> None:
        self._plan = plan
        self._totals = totals
        self._before = {figure.name: totals.reached(figure.name) for figure in plan.figures}

    def missing(self, spent: Mapping[str, float], seconds: float) -> Iterator[Missing]:
        """Yield each figure that is not reached; `spent` are the seconds of each part, which overlap."""
        at_once = sum(spent.values()) / seconds if seconds else 1.0
        for part in self._plan.parts:
            for figure in self._plan.figures:
                if figure.name not in part.figures or figure.per or figure.is_reached(self._totals):
                    continue
                reached = self._totals.reached(figure.name)
                missing, gained = figure.wanted - reached, reached - self._before[figure.name]
                took = spent.get(part.name, 0.0) / (at_once or 1.0) / 3600
                hours = missing * took / gained if gained and took else None
                yield Missing(figure, part.name, gained, missing, hours)

    def text(self, spent: Mapping[str, float], seconds: float) -> str:
        """Show a row for each missing figure, and the sum of hours."""
        rows = list(self.missing(spent, seconds))
        if not rows:
            return "every figure is reached"
        head = f"{'still missing':<58}{'':>12}{'in this run':>14}{'hours more':>12}"
        longest: dict[str, float] = {}
        for row in rows:
            longest[row.part] = max(longest.get(row.part, 0.0), row.hours or 0.0)
        least = "at least " if any(row.hours is None for row in rows) else ""
        whole = f"{least}{sum(longest.values()):,.1f} hours more at this rate on this machine"
        return "\n".join([head, *(row.row() for row in rows), whole])
