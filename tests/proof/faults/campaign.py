"""Real faults of each kind, from one seed, on one store; a count that is not reached is a failure."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from tests.proof.faults.fault import Fault
from tests.proof.faults.kinds import (
    FrozenAtCommit,
    KilledAtCommit,
    KilledAtSystemCall,
    choose_kill,
    choose_trouble,
)
from tests.proof.faults.run import Place, Run

AT_ONCE: Final = 8
SPARE: Final = 3
"""Faults tried for each wanted one before giving up: a fault may come too late to count."""


MOST_CALLS: Final = 60
LEAST_CALLS: Final = 30
LEAST_COMMITS: Final = 20
"""Lower bounds of `_not_so_late`: the standard task has about this many calls and commits."""


@dataclass
class Outcome:
    """The faults that took place, by kind, and the invariants that did not hold."""

    counted: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    in_vain: int = 0
    broken: list[str] = field(default_factory=list)


class Campaign:
    """Injects faults on one store until every wanted count is reached."""

    def __init__(self, url: str, home: Path, wanted: dict[str, int], seed: int) -> None:
        self._url = url
        self._home = home
        self._wanted = wanted
        self._dice = Random(f"{seed}:{url.partition(':')[0]}")
        self._is_sqlite = url.startswith("sqlite")
        self._may_trace = KilledAtSystemCall.is_possible()
        self._commits = 0
        self._calls = MOST_CALLS
        self._place: Place
        self.outcome = Outcome()

    async def run(self) -> Outcome:
        async with Place(self._url, self._home) as self._place:
            self._commits = await self._place.count_commits()
            for kind, make in self._makers().items():
                await self._inject_until_counted(kind, make)
        return self.outcome

    def _makers(self) -> dict[str, Callable[[], Fault]]:
        dice = self._dice
        return {
            "kills": lambda: choose_kill(
                dice, self._commits, self._calls, is_sqlite=self._is_sqlite, may_trace=self._may_trace
            ),
            "zombies": lambda: FrozenAtCommit(dice.randrange(1, self._commits + 1)),
            "others": lambda: choose_trouble(dice, is_sqlite=self._is_sqlite),
        }

    async def _inject_until_counted(self, kind: str, make: Callable[[], Fault]) -> None:
        wanted, tried = self._wanted.get(kind, 0), 0
        while (left := wanted - self.outcome.counted[kind]) > 0 and tried < SPARE * wanted + AT_ONCE:
            faults = [make() for _ in range(min(left, AT_ONCE * 4))]
            tried += len(faults)
            await self._inject(faults)

    async def _inject(self, faults: list[Fault]) -> None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(fault: Fault) -> None:
            async with limit:
                try:
                    await Run(self._place, fault).run_to_end()
                except Exception as error:  # reported with all other failures
                    self.outcome.broken.append(f"{fault}: {type(error).__name__}: {error}")
                    return
                self._count(fault)

        await asyncio.gather(*map(one, faults))

    def _count(self, fault: Fault) -> None:
        if not fault.counts:
            self.outcome.in_vain += 1
            self._choose_earlier(fault)
            return
        self.outcome.counted[fault.counts_as] += 1
        self.outcome.kinds[type(fault).__name__ + getattr(fault, "way", "").title()] += 1

    def _choose_earlier(self, fault: Fault) -> None:
        """Choose earlier commits or system calls from now on: the worker does not reach this one."""
        if isinstance(fault, KilledAtCommit | FrozenAtCommit) and not fault.is_struck:
            self._commits = max(LEAST_COMMITS, min(self._commits, fault.at - 1))
        elif isinstance(fault, KilledAtSystemCall):
            self._calls = max(LEAST_CALLS, min(self._calls, fault.number - 1))

    def missing(self) -> dict[str, int]:
        """Return the counts that were not reached."""
        return {kind: wanted for kind, wanted in self._wanted.items() if self.outcome.counted[kind] < wanted}


def share_out(wanted: dict[str, int], parts: int) -> list[dict[str, int]]:
    """Share the counts out among parts, rounded up."""
    return [{kind: -(-number // parts) for kind, number in wanted.items()} for _ in range(parts)]


def describe_outcome(url: str, outcome: Outcome, began: float) -> str:
    """Describe the outcome on one store."""
    counted = ", ".join(f"{number} {kind}" for kind, number in outcome.counted.items())
    kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(outcome.kinds.items()))
    store = url.partition(":")[0]
    return (
        f"{store}: {counted} in {time.monotonic() - began:.0f} s ({outcome.in_vain} came too late to count)\n"
        f"  {kinds}"
    )
