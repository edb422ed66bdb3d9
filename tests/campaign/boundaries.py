"""Commit boundaries: in short histories of everything, whoever commits dies, before the commit or after it.

    python -m tests.campaign.boundaries SEED worker/Finish/before [pmo/Reclaim/after]

Which operations take place in which history is found out first; then each is struck in the shortest that has
it, for each kind of process that does it. Pairs are two deaths in one history, the second after the first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from endwell.testing.shrinking import told
from tests.campaign.everything import Boundary, live
from tests.campaign.figures import Line
from tests.campaign.operations import OPERATIONS
from tests.campaign.parts import Say

HISTORIES: Final = 8
"""In as many, every operation takes place at least once."""
WHERE: Final = ("before", "after")


def census(seeds: Iterable[int]) -> dict[tuple[str, str], int]:
    """Who does which operation, and the seed of the shortest history in which that is so."""
    histories = [live(seed) for seed in seeds]
    found: dict[tuple[str, str], int] = {}
    for history, result in sorted(histories, key=lambda lived: lived[1].steps):
        for kind in history.seen:
            found.setdefault(kind, result.seed)
    return {kind: found[kind] for kind in sorted(found)}


def crash_at_all(say: Say) -> None:
    """All boundaries."""
    for (who, operation), history in census(range(1, HISTORIES + 1)).items():
        before, after = (Boundary(who, operation, where) for where in WHERE)
        if _strike(history, [before, after], say) < len(WHERE):
            _strike(history, [after], say)  # it takes place but once


def crash_at_pairs(seed: int, count: int, say: Say) -> None:
    """So many pairs in one history, the next ones for the next seed."""
    history, _ = live(seed)
    ways = [Boundary(who, what, where) for who, what in sorted(history.seen) for where in WHERE]
    for number in range(count):
        first, second = divmod(((seed * count) + number) * 7919 % (len(ways) ** 2), len(ways))
        _strike(seed, [ways[first], ways[second]], say)


def _strike(seed: int, strikes: list[Boundary], say: Say) -> int:
    """How many of the deaths took place; the second is looked for after the first."""
    history, result = live(seed, strikes)
    again = f"python -m tests.campaign.boundaries {seed} {' '.join(map(str, strikes))}"
    failed = () if result.is_good else (f"{again}\n{told(result)}",)
    say(Line(counts={"boundaries": len(history.struck)}, kinds=dict(_kinds(history.struck)), failed=failed))
    return len(history.struck)


def _kinds(struck: Sequence[Boundary]) -> Iterator[tuple[str, list[str]]]:
    for where in WHERE:
        yield (
            f"operations {where}",
            [one.operation for one in struck if one.where == where and one.operation in OPERATIONS],
        )
    if len(struck) > 1:
        yield "pairs", ["+".join(f"{one.operation}/{one.where}" for one in struck)]


def main(arguments: list[str]) -> int:
    strikes = [Boundary(*words.split("/")) for words in arguments[1:]]
    history, result = live(int(arguments[0]), strikes)
    sys.stdout.write(f"struck: {' '.join(map(str, history.struck))}\n")
    sys.stdout.write("everything held\n" if result.is_good else told(result) + "\n")
    return 0 if result.is_good and len(history.struck) == len(strikes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
