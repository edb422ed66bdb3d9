"""A store that caches its running tasks notices when another store has moved one."""

from __future__ import annotations

import pytest

from endwell.errors import StaleAttempt
from endwell.model import commands as c
from endwell.model.moments import SECOND
from tests.store.world import World


@pytest.mark.covers("S3.18")
async def test_a_refusal_is_decided_on_the_row_and_not_on_the_cache(
    world: World,
) -> None:
    task = await world.running_task()
    await world.do(world.to(c.Progress, task))  # now the store remembers the task as its own
    other = await world.another_store()
    await other.commit_one(world.to(c.HandBack, task))

    never = world.call(task, kind="timer", within=10**6 * 3600 * SECOND)
    with pytest.raises(StaleAttempt):
        await world.store.commit_one(world.to(c.Suspend, task, calls=(never,)))
