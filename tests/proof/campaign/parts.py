"""The parts of a campaign. Each runs one piece of work from one seed, and reports in lines."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from endwell.testing.campaign import Figures
from endwell.testing.shrinking import describe_failure, shrink, simulate
from tests.proof.campaign.figures import Line
from tests.proof.campaign.restore import lose_and_restore
from tests.proof.kept_histories import keep_history
from tests.store.world import Database, PostgresDatabase, SqliteDatabase

Say = Callable[[Line], None]
Run = Callable[[int, int, Say], None]
MUTANT_SHARES: Final = 4


@dataclass(frozen=True)
class Part:
    """One part. `counts` is the figure that measures it; `piece` is how much of that one process does.

    `figures` are all figures that it adds to. `rounds` is the number of its pieces where that does not follow
    from the figure. `repeats` says that further pieces would only repeat the same work with this source.
    """

    name: str
    counts: str
    piece: int
    run: Run
    rounds: int | None = None
    repeats: bool = False
    figures: tuple[str, ...] = ()

    def pieces(self, wanted: int) -> int:
        """Return how many pieces reach this figure."""
        return self.rounds or -(-wanted // self.piece)


def seeds_of(seed: int, size: int) -> range:
    """Return the seeds of a piece; different pieces have different seeds."""
    return range((seed - 1) * size + 1, seed * size + 1)


def simulations(seed: int, size: int, say: Say) -> None:
    """Run simulated histories; shrink and keep failures."""
    for each in seeds_of(seed, size):
        result = simulate(each)
        if not result.is_good:
            result = shrink(result)
            keep_history(result)
        figures = Figures.from_result(result)
        counts = {"seeds": 1, "faults": figures.fault_count, "judgements": figures.judged}
        say(Line(counts=counts, kinds={"fault kinds": list(figures.faults)}, failed=figures.failures))


def restores(seed: int, size: int, say: Say) -> None:
    """Run installations that are lost and restored from an earlier copy of their store."""
    for each in seeds_of(seed, size):
        with tempfile.TemporaryDirectory(prefix="endwell-restore-") as directory:
            result = lose_and_restore(each, Path(directory))
        failed = () if result.is_good else (f"the restore of seed {each} broke\n{describe_failure(result)}",)
        say(Line(counts={"restores": 1}, failed=failed))


def states(seed: int, size: int, say: Say) -> None:
    """Walk worlds of the task machine: small ones to their last state, larger ones in part."""
    from tests.machine.walk.explore import explore, report
    from tests.machine.walk.worlds import worlds_of

    for world, at_most in worlds_of(seed, size):
        walk = explore(world) if at_most is None else explore(world, at_most)
        failed = () if walk.violation is None else (f"{world}\n" + "\n".join(report(walk)),)
        say(Line(counts={"states": walk.states, "worlds": 1}, failed=failed))


def boundaries(seed: int, size: int, say: Say) -> None:
    """Kill a process before and after every commit: seed 1 without streams, seed 2 with streams."""
    from tests.proof.campaign.boundaries import crash_at_all, crash_with_streams

    crash_at_all(say) if seed == 1 else crash_with_streams(say)


def pairs(seed: int, size: int, say: Say) -> None:
    """Kill two processes in one history, each at the commit of an operation."""
    from tests.proof.campaign.boundaries import crash_at_pairs

    crash_at_pairs(seed, size, say)


def faults(seed: int, size: int, say: Say) -> None:
    """Kill real processes, and freeze and wake a third as many; on SQLite and PostgreSQL in turn."""
    from tests.proof.faults.campaign import Campaign

    wanted = {"kills": size, "zombies": -(-size // 3), "others": -(-size // 10)}
    with _home() as home, _url(home, on_postgres=seed % 2 == 0) as url:
        campaign = Campaign(url, home, wanted, seed)
        outcome = asyncio.run(campaign.run())
    say(Line(counts=dict(outcome.counted), failed=tuple(outcome.broken)))


def histories(seed: int, size: int, say: Say) -> None:
    """Run random histories on two stores of one database; every fourth piece on PostgreSQL."""
    from tests.proof.histories.runner import run_histories

    with _home() as home, _url(home, on_postgres=seed % 4 == 0) as url:
        say(Line(counts={"histories": run_histories(_database(home, url), size, seed)}))


def fuzz(seed: int, size: int, say: Say) -> None:
    """Give every decoder valid, mutated and random inputs."""
    from tests.proof.fuzz.campaign import no_hangs, run, shortest_findings, shortfalls
    from tests.proof.fuzz.targets import all_targets

    with _home() as home, no_hangs():
        targets = all_targets(home)
        outcome = run(targets, size, seed)
        again = f"python -m tests.proof.fuzz --inputs {size} --seed {seed} --keep"
        failed = [f"{again}\n{one}" for one in shortest_findings(outcome.findings)[:5]]
        failed += [f"{again}\ntoo few: {short}" for short in shortfalls(outcome, targets)]
    accepted = sum(tally.accepted for tally in outcome.tallies.values())
    counts = {"inputs": outcome.inputs, "accepted": accepted, "refused": outcome.inputs - accepted}
    say(Line(counts=counts, failed=tuple(failed)))


def planted(seed: int, size: int, say: Say) -> None:
    """Plant small defects in a copy of the product; the tests named beside each must fail."""
    from tests.proof.planted.defect import Planter
    from tests.proof.planted.defects import DEFECTS
    from tests.servers.postgres import postgres_for_tests

    chosen = DEFECTS[(seed - 1) * size : seed * size]
    server = postgres_for_tests() if any(defect.on_postgres for defect in chosen) else None
    try:
        with Planter(None if server is None else server.url("postgres")) as planter:
            for defect in chosen:
                answer = planter.plant(defect)
                failed = () if answer.is_red else (f"{defect.name} was not caught\n{answer.said[-1500:]}",)
                caught = {"defects": [defect.name]} if answer.is_red else {}
                say(Line(kinds=caught, failed=failed))
    finally:
        if server is not None:
            server.stop()


def mutants(seed: int, size: int, say: Say) -> None:
    """Change machine/ and policy/ by machine; their tests must notice nearly all changes.

    A quarter of all mutants in each piece, in a process that has not imported the product: some changes must
    be there when it is imported.
    """
    share = f"{seed}/{MUTANT_SHARES}"
    argv = [sys.executable, "-m", "tests.proof.mutants", "--share", share, "--json"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
    tried = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    killed = [one["name"] for one in tried if one["is_killed"]]
    say(Line(kinds={"mutant shares": [share], "mutants": [one["name"] for one in tried], "killed": killed}))


@contextmanager
def _home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="endwell-campaign-") as directory:
        yield Path(directory)


@contextmanager
def _url(home: Path, *, on_postgres: bool) -> Iterator[str]:
    from tests.servers.postgres import postgres_for_tests

    if not on_postgres:
        yield f"sqlite:///{home}/endwell.db"
        return
    server = postgres_for_tests()
    try:
        yield server.create_database()
    finally:
        server.stop()


def _database(home: Path, url: str) -> Database:
    return SqliteDatabase(home / "endwell.db") if url.startswith("sqlite") else PostgresDatabase(url)
