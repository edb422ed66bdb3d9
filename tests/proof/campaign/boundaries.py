"""Commit boundaries: in short histories a process dies just before or just after a given commit.

    python -m tests.proof.campaign.boundaries [--streams] SEED worker/Finish/before [pmo/Reclaim/after]

A census finds out which operations take place in which history. Each operation is then struck, for each kind
of process that does it, in the shortest history that has it. Pairs are two deaths in one history. With
streams, processes also die around their Redis commands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from endwell.testing.installation import QueueKind
from endwell.testing.shrinking import describe_failure
from tests.proof.campaign.everything import Boundary, live
from tests.proof.campaign.figures import Line
from tests.proof.campaign.operations import OPERATIONS, STREAMED
from tests.proof.campaign.parts import Say

HISTORIES: Final = 8
"""This number of histories contain every operation."""
STREAMED_HISTORIES: Final = 2
"""This number of histories contains every boundary of `STREAMED`."""
WHERE: Final = ("before", "after")


def census(seeds: Iterable[int], queue: QueueKind | None = None) -> dict[tuple[str, str], int]:
    """Map each kind of process and operation to the seed of the shortest history that has it."""
    histories = [live(seed, queue=queue) for seed in seeds]
    found: dict[tuple[str, str], int] = {}
    for history, result in sorted(histories, key=lambda lived: lived[1].steps):
        for kind in history.seen:
            found.setdefault(kind, result.seed)
    return {kind: found[kind] for kind in sorted(found)}


def crash_at_all(say: Say) -> None:
    """Strike every boundary."""
    for (who, operation), history in census(range(1, HISTORIES + 1)).items():
        _strike_around(who, operation, history, say)


def crash_with_streams(say: Say) -> None:
    """Strike the boundaries that matter where turns travel over streams."""
    for (who, operation), history in census(range(1, STREAMED_HISTORIES + 1), "redis").items():
        if f"{who}/{operation}" in STREAMED:
            _strike_around(who, operation, history, say, "redis")


def _strike_around(who: str, operation: str, seed: int, say: Say, queue: QueueKind | None = None) -> None:
    before, after = (Boundary(who, operation, where) for where in WHERE)
    if _strike(seed, [before, after], say, queue) < len(WHERE):
        _strike(seed, [after], say, queue)  # it takes place only once


def crash_at_pairs(seed: int, count: int, say: Say) -> None:
    """Strike `count` pairs of boundaries in one history; the next seed takes the next pairs."""
    history, _ = live(seed)
    ways = [Boundary(who, what, where) for who, what in sorted(history.seen) for where in WHERE]
    for number in range(count):
        first, second = divmod(((seed * count) + number) * 7919 % (len(ways) ** 2), len(ways))
        _strike(seed, [ways[first], ways[second]], say)


def _strike(seed: int, strikes: list[Boundary], say: Say, queue: QueueKind | None = None) -> int:
    """Run a history with these deaths, one after the other; return how many took place."""
    history, result = live(seed, strikes, queue=queue)
    options = "--streams " if queue == "redis" else ""
    again = f"python -m tests.proof.campaign.boundaries {options}{seed} {' '.join(map(str, strikes))}"
    failed = () if result.is_good else (f"{again}\n{describe_failure(result)}",)
    kinds = {"streamed": [*map(str, history.struck)]} if queue == "redis" else dict(_kinds(history.struck))
    say(Line(counts={"boundaries": len(history.struck)}, kinds=kinds, failed=failed))
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
    queue: QueueKind | None = "redis" if arguments[0] == "--streams" else None
    seed, *words = arguments if queue is None else arguments[1:]
    strikes = [Boundary(*each.split("/")) for each in words]
    history, result = live(int(seed), strikes, queue=queue)
    sys.stdout.write(f"struck: {' '.join(map(str, history.struck))}\n")
    sys.stdout.write("everything held\n" if result.is_good else describe_failure(result) + "\n")
    return 0 if result.is_good and len(history.struck) == len(strikes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
