"""The PostgreSQL doorbell: the contract, and what is special about NOTIFY."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import asyncpg
import pytest

from endwell.doorbell import EVERYTHING, Doorbell
from endwell.doorbell.postgres import CHANNEL, LARGEST_PAYLOAD, PostgresDoorbell, packed
from endwell.runtime import Runtime
from tests.doorbell.contract import PATIENCE, DoorbellContract, Ear
from tests.servers.postgres import PostgresServer


async def becomes(question: Callable[[], bool]) -> None:
    """Wait until the answer is yes."""
    async with asyncio.timeout(PATIENCE):
        while not question():  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.005)


class TestPostgresDoorbell(DoorbellContract):
    """Bells on one database."""

    @pytest.fixture(autouse=True)
    def _database(self, postgres_url: str) -> None:
        self.url = postgres_url

    def make_bell(self) -> PostgresDoorbell:
        return PostgresDoorbell(self.url, runtime=Runtime.system())

    def recipe(self) -> str:
        return (
            "from endwell.doorbell.postgres import PostgresDoorbell; from endwell.runtime import Runtime\n"
            f"bell = PostgresDoorbell({self.url!r}, runtime=Runtime.system())"
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

    async def test_closing_sends_what_was_rung(self, other_bell: Doorbell) -> None:
        ear = Ear(other_bell)
        bell = self.make_bell()
        await bell.open()
        bell.ring(["goodbye"])
        await bell.close()
        await ear.wait_for("goodbye")


async def test_a_bell_comes_back_after_the_server_does(honest_postgres_server: PostgresServer) -> None:
    url = honest_postgres_server.create_database()
    bell = PostgresDoorbell(url, runtime=Runtime.system())
    other = PostgresDoorbell(url, runtime=Runtime.system())
    ear, other_ear = Ear(bell), Ear(other)
    await bell.open()
    await other.open()

    await asyncio.to_thread(honest_postgres_server.kill)
    await becomes(lambda: not bell.health().connected and not other.health().connected)
    bell.ring(["within"])
    await ear.wait_for("within")
    assert bell.health().last_error

    await asyncio.to_thread(honest_postgres_server.start)
    await becomes(lambda: bell.health().connected and other.health().connected)
    bell.ring(["again"])
    await other_ear.wait_for("again")
    assert EVERYTHING in frozenset().union(*other_ear.calls)
    await bell.close()
    await other.close()


async def test_a_server_that_is_not_there_leaves_a_bell_for_this_process_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bell = PostgresDoorbell("postgresql://me:secret@127.0.0.1:1/none", runtime=Runtime.system())
    ear = Ear(bell)
    await bell.open()
    bell.ring(["a"])
    await ear.wait_for("a")
    assert not bell.health().connected
    assert "polling" in caplog.text
    assert "secret" not in caplog.text
    await bell.close()
