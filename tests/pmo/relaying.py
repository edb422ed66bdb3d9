"""A relay that sends to a webhook soon, and tasks whose messages it sends."""

from __future__ import annotations

from typing import Any

from endwell.pmo.relay.service import Relay, relay_lag
from tests.support.world import World, eventually

QUICKLY: dict[str, object] = {
    "relay.kind": "webhook",
    "relay.retry_seconds": 0.05,
    "relay.pause_seconds": 0.05,
    "relay.poll_seconds": 0.05,
    "relay.tries": 2,
    "relay.batch": 3,
}


async def relay_of(world: World) -> Relay:
    relay = (await world.supervisor(await world.another_node())).relay
    assert relay is not None
    return relay


async def everything(relay: Relay) -> int:
    """Relay until the log is read to its end, which on PostgreSQL is a moment after the commit."""
    count = 0

    async def is_done() -> bool:
        nonlocal count
        count += await relay.run_once()
        now = await relay._store.now()
        return await relay_lag(relay._store, relay._namespace, now) == 0

    await eventually(is_done, "the relay has told everything")
    return count


async def done(world: World, agent: str, payload: Any = None) -> str:
    """A task that a worker has ended."""
    handle = await world.submitted(agent, payload)
    worker = await world.started_worker()
    while not (await world.store.task(world.namespace, handle.id)).is_ended:
        worker._source.may_have_work = True
        await worker.run_once()
    return handle.id
