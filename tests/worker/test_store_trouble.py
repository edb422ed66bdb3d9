"""The store itself goes away while work is under way: nothing is lost, and work resumes by itself."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

import apsw
import pytest

from endwell.errors import StoreError
from endwell.runtime import SystemClock
from endwell.worker import session
from endwell.worker.session import WorkerSession
from tests.patience import PATIENCE_SECONDS
from tests.servers.postgres import PostgresServer
from tests.support.world import TINY, World, eventually, terminal


class Gated:
    """An agent that ends when the test says so."""

    def __init__(self, world: World) -> None:
        self.gate = asyncio.Event()
        self.runs: list[int] = []

        @world.app.agent("gated")
        async def gated(number: int) -> int:
            self.runs.append(number)
            await self.gate.wait()
            return number


async def test_results_survive_while_another_process_holds_the_file_s_lock(sqlite_url: str) -> None:
    async with World(sqlite_url, settings=TINY, clock=SystemClock()) as world:
        agent = Gated(world)
        worker = await world.working()
        handles = await world.client.submit_many("gated", range(5))
        await eventually(lambda: len(agent.runs) == 5)
        with Locked(Path(sqlite_url.removeprefix("sqlite:///"))):
            agent.gate.set()
            await asyncio.sleep(0.25)  # heartbeats and results wait behind the lock, within the lease
            assert await world.counts() == {"running": 5}
        assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == list(range(5))
        assert len(agent.runs) == 5
        assert worker.refused == 0


class Locked:
    """Another connection's open write transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stop = threading.Event()
        self._held = threading.Event()

    def __enter__(self) -> None:
        self._thread = threading.Thread(target=self._hold)
        self._thread.start()
        assert self._held.wait(PATIENCE_SECONDS)

    def _hold(self) -> None:
        connection = apsw.Connection(str(self._path))
        connection.set_busy_timeout(5000)
        connection.execute("BEGIN IMMEDIATE")
        self._held.set()
        self._stop.wait(PATIENCE_SECONDS)
        connection.execute("ROLLBACK")
        connection.close()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


async def test_a_file_that_is_moved_away_and_back_has_lost_nothing(sqlite_url: str) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    async with World(sqlite_url) as world:
        agent = Gated(world)
        await world.working()
        handles = await world.client.submit_many("gated", range(3))
        await eventually(lambda: len(agent.runs) == 3)

        async def ended() -> bool:
            return await world.counts() == {"succeeded": 3}

        os.rename(path, f"{path}.away")
        agent.gate.set()
        await eventually(ended, "the results are written to a file that is not where it was")
        os.rename(f"{path}.away", path)
        assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == [0, 1, 2]
        assert sorted(agent.runs) == [0, 1, 2]
        for handle in handles:
            assert terminal(await world.history(handle)) == ["task.succeeded"]


async def test_work_resumes_after_a_restart_of_the_server(
    honest_postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = honest_postgres_server.create_database()
    settings = {**TINY, "worker.lease_seconds": 20, "worker.heartbeat_seconds": 0.2}
    async with World(url, settings=settings, clock=SystemClock()) as world:
        agent = Gated(world)
        worker = await world.working()
        handles = await world.client.submit_many("gated", range(5))
        await eventually(lambda: len(agent.runs) == 5)
        honest_postgres_server.kill()
        agent.gate.set()
        met = "lost the connection"
        await eventually(lambda: met in caplog.text, "the results meet a server that is not there")
        honest_postgres_server.start()
        assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == list(range(5))
        assert sorted(agent.runs) == list(range(5)), "nothing was computed twice"
        later = await world.submitted("gated", 7)
        assert await later.result(PATIENCE_SECONDS) == 7
        for handle in (*handles, later):
            assert terminal(await world.history(handle)) == ["task.succeeded"]
        assert worker.refused == 0


async def test_an_outage_is_logged_once_although_a_session_is_tried_twice_a_second(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @sqlite_world.app.agent("clerk")
    async def clerk() -> None: ...

    caplog.set_level(logging.INFO)
    worker = await sqlite_world.working()
    tries, open_session = [], WorkerSession.open

    async def fails_thrice(one: WorkerSession) -> None:
        tries.append(one)
        if len(tries) <= 3:
            raise StoreError("no way there")
        await open_session(one)

    monkeypatch.setattr(WorkerSession, "open", fails_thrice)
    monkeypatch.setattr(session, "PAUSE_SECONDS", 0.001)
    worker._session.lose_lease(worker.session_id, "the test says so")
    await eventually(lambda: bool(worker.session_id), "it has a session again")
    told = [record.message for record in caplog.records if record.name == "endwell.worker.session"]
    assert [message.split(": ")[0].removeprefix(f"worker {worker.name} ") for message in told[1:]] == [
        "cannot open a session yet",
        "has a session again",
    ]
    assert len(tries) == 4
