"""One long task, and its worker killed or frozen at every single commit of it, before and after.

After each of them the task finishes with the same result, no recorded function is called again, and each
effect's function is called exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import tally
from tests.proof.faults.fault import Fault
from tests.proof.faults.kinds import FrozenAtCommit, KilledAtCommit, Where
from tests.proof.faults.run import Place, Run

AT_ONCE = 6  # most of them wait for a lease to lapse


async def _at_every_commit(url: str, home: Path, fault_at: Callable[[int], Fault]) -> list[Fault]:
    """One run for each commit of the task, a few at a time; each checks by itself that everything held."""
    async with Place(url, home) as place:
        commits = await place.count_commits()
        faults = [fault_at(at) for at in range(1, commits + 1)]
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(fault: Fault) -> None:
            async with limit:
                await Run(place, fault).run_to_end()
                tally.count(fault.counts_as, fault.counts)

        await asyncio.gather(*map(one, faults))
    return faults


@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_worker_killed_at_any_commit_neither_loses_nor_repeats_work(
    store_url: str, tmp_path: Path, where: Where
) -> None:
    faults = await _at_every_commit(store_url, tmp_path, lambda at: KilledAtCommit(at, where))

    assert sum(fault.is_struck for fault in faults) >= 20


async def test_a_worker_frozen_at_any_commit_repeats_no_work_when_woken(
    store_url: str, tmp_path: Path
) -> None:
    faults = await _at_every_commit(store_url, tmp_path, FrozenAtCommit)

    assert sum(fault.is_struck for fault in faults) >= 20
