"""Some real faults of each kind in each run; `python -m tests.proof.faults` injects hundreds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests import tally
from tests.proof.faults.campaign import share_out
from tests.proof.faults.fault import Fault
from tests.proof.faults.kinds import BadLine, DiskFull, KilledAtCommit, KilledAtMoment, KilledAtSystemCall
from tests.proof.faults.run import Place, Run
from tests.servers.postgres import Postgres


async def _inject_all(place: Place, faults: list[Fault]) -> None:
    """Inject all faults at once; each run checks by itself that everything held."""
    await asyncio.gather(*(Run(place, fault).run_to_end() for fault in faults))
    for fault in faults:
        tally.count(fault.counts_as, fault.counts)


async def test_a_worker_killed_inside_a_system_call_loses_nothing(tmp_path: Path) -> None:
    if not KilledAtSystemCall.is_possible():
        pytest.skip("there is no strace here; the same commits are struck by test_every_commit.py")
    async with Place(f"sqlite:///{tmp_path}/endwell.db", tmp_path) as place:
        faults: list[Fault] = [
            KilledAtSystemCall(call, at) for call, at in (("fdatasync", 5), ("pwrite64", 9), ("pwrite64", 30))
        ]
        await _inject_all(place, faults)

    assert all(fault.is_struck for fault in faults)


async def test_a_worker_killed_at_any_moment_or_without_room_on_the_disk_loses_nothing(
    tmp_path: Path,
) -> None:
    async with Place(f"sqlite:///{tmp_path}/endwell.db", tmp_path) as place:
        faults: list[Fault] = [KilledAtMoment(1), KilledAtMoment(4), DiskFull(0.0, 1.0), DiskFull(0.2, 0.5)]
        await _inject_all(place, faults)

    assert sum(fault.counts for fault in faults) >= 2


async def test_a_bad_line_or_a_wrong_clock_loses_nothing(postgres_server: Postgres, tmp_path: Path) -> None:
    """The client's clock is a day off, or the line swallows an answer or is cut."""
    async with Place(postgres_server.create_database(), tmp_path) as place:
        faults: list[Fault] = [BadLine(way, 2) for way in ("after", "cut")]
        await _inject_all(place, [*faults, KilledAtCommit(6, "after", shift_seconds=86_400.0)])

    assert all(fault.counts for fault in faults)


def test_the_shares_of_the_stores_are_at_least_what_was_wanted() -> None:
    assert share_out({"kills": 61, "zombies": 20}, 2) == [{"kills": 31, "zombies": 10}] * 2
