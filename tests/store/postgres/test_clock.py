"""On PostgreSQL all decisions use the server's clock."""

from __future__ import annotations

import pytest

from endwell.model.moments import SECOND
from endwell.runtime import Runtime, SystemClock
from tests.store.world import PostgresDatabase, World
from tests.support.manual_clock import ManualClock

HOUR_US = 3600 * SECOND
MINUTE_US = 60 * SECOND


@pytest.mark.parametrize("hours", [-24, 24])
async def test_decisions_use_the_servers_clock_and_not_the_clients(
    postgres_database: PostgresDatabase, hours: int
) -> None:
    right = SystemClock().now_us()
    postgres_database.runtime = Runtime.system(clock=ManualClock(right + hours * HOUR_US))
    world = World(postgres_database)
    await world.open()

    task = await world.running_task()

    assert abs(await world.store.now() - right) < MINUTE_US
    assert abs(task.created_at - right) < MINUTE_US
    assert abs(task.updated_at - right) < MINUTE_US
    session = await world.store.session("default", "s1")
    assert session is not None
    assert abs(session.lease_until - right) < 2 * MINUTE_US
    assert await world.store.expired_claims("default", await world.store.now(), 10) == []
    await world.close()
