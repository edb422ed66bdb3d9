"""The PostgreSQL doorbell: the contract, and what is special about NOTIFY."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest

from endwell.doorbell import EVERYTHING, Doorbell, served
from endwell.doorbell.postgres import CHANNEL, LARGEST_PAYLOAD, PostgresDoorbell, packed
from endwell.runtime import Runtime
from tests.doorbell.contract import PATIENCE, DoorbellContract, Ear, becomes, opened
from tests.doorbell.served import ServedContract
from tests.servers.postgres import PostgresServer


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

    async def test_rings_gathered_while_one_is_on_its_way_share_the_next(self, bell: Doorbell) -> None:
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
    def test_what_no_payload_can_hold_is_everything(self, topics: list[str]) -> None:
        assert packed(topics) == EVERYTHING

    async def test_closing_sends_what_was_rung(
        self, other_bell: Doorbell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(served, "FLUSH_SECONDS", PATIENCE)  # however busy the machine is
        ear = Ear(other_bell)
        bell = self.make_bell()
        await opened(bell)
        bell.ring(["goodbye"])
        await bell.close()
        await ear.wait_for("goodbye")


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
        one_server.restart()  # one that a test's own thread started ends with that thread

    @pytest.fixture
    def server_url(self, one_server: PostgresServer) -> str:
        return one_server.url("postgres")
