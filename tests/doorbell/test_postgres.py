"""The PostgreSQL doorbell: the contract, and what is special about NOTIFY."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import asyncpg
import pytest

from endwell.doorbell import EVERYTHING, Doorbell, server_bell
from endwell.doorbell.postgres import CHANNEL, LARGEST_PAYLOAD, PostgresDoorbell, pack_topics
from endwell.runtime import Runtime
from tests.doorbell.contract import PATIENCE, DoorbellContract, Ear, becomes, opened
from tests.doorbell.served import ServedContract
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy, Side


class Pooler(Proxy):
    """Like a pooler, it answers with a process number of its own instead of the server's."""

    async def _piece(self, side: Side) -> bytes:
        data = await super()._piece(side)
        return re.sub(rb"K\0\0\0\x0c....", lambda found: found[0][:5] + b"\0\0\0\7", data, flags=re.DOTALL)


async def test_pooler_that_would_swallow_rings_is_reported_at_the_start(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """E3: such a bell counts as disconnected, so that workers poll."""
    async with Proxy(postgres_url) as proxy, Pooler(postgres_url) as pooler:
        direct = PostgresDoorbell(proxy.url, runtime=Runtime.system())
        await opened(direct)
        await direct.close()
        pooled = PostgresDoorbell(pooler.url, runtime=Runtime.system())
        with caplog.at_level(logging.WARNING):
            await pooled.open()
            await becomes(lambda: "pooler" in (pooled.health().last_error or ""))
        assert not pooled.health().connected
        await pooled.close()
    assert "a connection pooler stands before PostgreSQL" in caplog.text


class TestPostgresDoorbell(DoorbellContract):
    """Bells on one database."""

    @pytest.fixture(autouse=True)
    def _database(self, postgres_url: str) -> None:
        self.url = postgres_url

    def make_bell(self) -> PostgresDoorbell:
        return PostgresDoorbell(self.url, runtime=Runtime.system(), patience_seconds=PATIENCE)

    def recipe(self) -> str:
        return (
            "from endwell.doorbell.postgres import PostgresDoorbell; from endwell.runtime import Runtime\n"
            f"bell = PostgresDoorbell({self.url!r}, runtime=Runtime.system(), patience_seconds={PATIENCE})"
        )

    async def test_rings_during_a_request_share_the_next_one(self, bell: Doorbell) -> None:
        heard: list[str] = []
        connection = await asyncpg.connect(self.url)
        await connection.add_listener(CHANNEL, lambda *call: heard.append(call[-1]))
        for number in range(200):
            bell.ring([f"topic:{number % 3}"])
        bell.ring(["last"])
        await becomes(lambda: any("last" in payload for payload in heard))
        assert len(heard) <= 2
        await connection.close()

    async def test_a_ring_too_long_for_one_notify_is_sent_as_everything(
        self, bell: Doorbell, other_bell: Doorbell
    ) -> None:
        ear = Ear(other_bell)
        bell.ring(["x" * LARGEST_PAYLOAD, "y"])
        await ear.wait_for("y")
        assert ear.calls[-1] == frozenset({EVERYTHING})

    @pytest.mark.parametrize("topics", [["nul\0"], ["\udc80"], ["x" * 8000]])
    def test_topics_that_do_not_fit_into_a_payload_become_everything(self, topics: list[str]) -> None:
        assert pack_topics(topics) == EVERYTHING

    async def test_closing_sends_the_last_rings(
        self, other_bell: Doorbell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server_bell, "FLUSH_SECONDS", PATIENCE)  # however busy the machine is
        ear = Ear(other_bell)
        bell = self.make_bell()
        await opened(bell)
        bell.ring(["last"])
        await bell.close()
        await ear.wait_for("last")


@pytest.fixture(scope="module")
def one_server() -> Iterator[PostgresServer]:
    """A server to be killed, for several tests: it takes a second to make."""
    server = PostgresServer()
    server.start()
    yield server
    server.stop()


class TestPostgresServer(ServedContract):
    """What a server may do to it."""

    def bell_at(self, url: str) -> Doorbell:
        return PostgresDoorbell(url, runtime=Runtime.system(), look_seconds=0.2, patience_seconds=0.2)

    def nowhere(self) -> str:
        return "postgresql://me:secret@127.0.0.1:1/none"

    @pytest.fixture
    def server(self, one_server: PostgresServer) -> Iterator[PostgresServer]:
        yield one_server
        one_server.restart()  # a server ends with the thread of the test that started it

    @pytest.fixture
    def server_url(self, one_server: PostgresServer) -> str:
        return one_server.url("postgres")
