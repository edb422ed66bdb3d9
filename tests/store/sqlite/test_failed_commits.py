"""A COMMIT that fails: it may have taken place or not, and the store finds out by looking."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from endwell.errors import StoreError
from endwell.model import commands as c
from tests.store.world import World


class Flaky:
    """A connection whose next COMMIT fails, before or after it took place."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.next_commit: str | None = None

    def execute(self, sql: str, *rest: Any) -> Any:
        if sql == "COMMIT" and self.next_commit is not None:
            when, self.next_commit = self.next_commit, None
            if when == "after":
                self._real.execute(sql)
            raise apsw.IOError("the disk answered nonsense")
        return self._real.execute(sql, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def flaky(world: World) -> Flaky:
    driver = world.store._writer  # type: ignore[attr-defined]
    driver._connection = Flaky(driver._connection)
    made: Flaky = driver._connection
    return made


async def test_a_commit_that_failed_but_took_place_is_not_done_again(world: World) -> None:
    await world.open_session()
    mine, gone = await world.running_task(), await world.running_task()
    await world.store.commit([world.to(c.Cancel, gone)])
    waiting = await world.queued_task()
    flaky(world).next_commit = "after"
    submitted, finished, refused, claimed = await world.store.commit(
        [world.submit(), world.finish(mine), world.finish(gone), world.claim_next()]
    )
    assert submitted.is_new
    assert finished.unwrap().status == "succeeded"
    assert refused.refusal is not None
    assert refused.refusal.code == "stale_attempt"
    assert [offer.task.id for offer in claimed.taken] == [waiting.id]
    assert (await world.history(mine)).count("task.succeeded") == 1
    assert (await world.history(gone)).count("write.refused") == 1
    assert await world.problems() == []


async def test_a_commit_that_failed_and_did_not_take_place_leaves_nothing_behind(world: World) -> None:
    """H-4: what the disk refuses (fsync says EIO) is not treated or reported as committed."""
    task = await world.running_task()
    connection = flaky(world)
    connection.next_commit = "before"
    with pytest.raises(StoreError) as caught:
        await world.store.commit([world.finish(task), world.submit()])
    assert caught.value.code == "store_io_error"
    assert await world.task(task) == task
    assert (await world.do(world.finish(task))).status == "succeeded"
    assert await world.store.counts_by_status("default") == {"succeeded": 1}
    assert await world.problems() == []


async def test_a_heartbeat_whose_commit_failed_but_took_place_counts_once(world: World) -> None:
    task = await world.running_task()
    flaky(world).next_commit = "after"
    await world.store.commit_one(world.heartbeat())
    assert (await world.task(task)).status == "running"
