"""What doing nothing costs: the statements that an idle worker and an idle PMO send in a minute."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator

from endwell import Endwell
from endwell.app import Services
from endwell.bench.idle import ROLES, on_postgres, on_sqlite, role_of_connections
from endwell.doorbell import Doorbell
from endwell.doorbell.postgres import LOOK_SECONDS, PostgresDoorbell
from endwell.runtime import Runtime
from tests.patience import PATIENCE_SECONDS
from tests.support.hurried import SPEED, hurried
from tests.support.world import eventually

MOST_STATEMENTS = {
    ("sqlite", "worker"): 34,  # its looks send nothing unless there was a commit, here by the PMO
    ("sqlite", "pmo"): 40,
    ("postgresql", "worker"): 43,
    ("postgresql", "pmo"): 40,
}
MOST_WRITES = 8
MINUTES = 2
Counts = Counter[tuple[str, str]]


class HurriedApp(Endwell):
    """With default intervals, in time that passes faster."""

    def __init__(self, url: str) -> None:
        patient = {"worker.lease_seconds": 600}  # a slow machine must not look like a lost lease
        super().__init__(url, namespace=f"test-{uuid.uuid4().hex}", settings=patient, runtime=hurried())

        @self.agent("coder")
        async def coder() -> None: ...

        @self.agent("tester")
        async def tester() -> None: ...

    def open_bell(self) -> Doorbell:
        if self.url.startswith("sqlite"):
            return super().open_bell()
        # Servers do not hurry: it asks as often, and has patience as long as ever.
        return PostgresDoorbell(
            self.url, runtime=Runtime.system(), look_seconds=LOOK_SECONDS / SPEED, patience_seconds=5
        )


@contextlib.asynccontextmanager
async def idle(app: HurriedApp) -> AsyncIterator[Counts]:
    """A worker and a PMO, each on a node of its own, every statement counted by role."""
    counts: Counts = Counter()
    count_on = on_sqlite if app.url.startswith("sqlite") else on_postgres
    with count_on(counts):
        async with contextlib.AsyncExitStack() as stack:
            for role in ROLES:
                token = role_of_connections.set(role)
                node = await stack.enter_async_context(app.connect())
                services = Services(node, worker=role == "worker", pmo=role == "pmo")
                await services.start()
                stack.push_async_callback(services.stop)
                role_of_connections.reset(token)
            yield counts


async def test_an_idle_worker_and_an_idle_pmo_send_few_statements(store_url: str) -> None:
    app = HurriedApp(store_url)
    async with idle(app) as counts:
        await eventually(lambda: all(counts[role, "writes"] >= 2 for role in ROLES), "they have begun")
        counts.clear()
        await eventually(lambda: counts["worker", "writes"] >= 1, "a heartbeat begins the minutes")
        counts.clear()
        begin = app.runtime.clock.monotonic()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.sleep(MINUTES * 60 / SPEED)
        minutes = (app.runtime.clock.monotonic() - begin) / 60
    kind = store_url.partition(":")[0]
    for role in ROLES:
        assert counts[role, "statements"] / minutes <= MOST_STATEMENTS[kind, role], role
        assert 2 <= counts[role, "writes"] / minutes <= MOST_WRITES, f"{role}: nothing but heartbeats"
