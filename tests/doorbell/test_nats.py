"""The NATS doorbell: the contract, what a server may do to it, and what is special about subjects."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from endwell.doorbell import Doorbell
from endwell.doorbell.nats import NatsDoorbell, flush_all, nats_client
from endwell.errors import UsageError
from endwell.runtime import Runtime
from tests.doorbell.contract import PATIENCE, DoorbellContract, Ear, becomes
from tests.doorbell.served import ServedContract
from tests.servers.attentive import AttentiveNats
from tests.servers.small import NatsServer


class TestNatsDoorbell(DoorbellContract):
    """Bells on a shared server."""

    @pytest.fixture(autouse=True)
    def _place(self, nats_url: str) -> None:
        self.url = nats_url

    @pytest.fixture
    async def client(self) -> AsyncIterator[Any]:
        """Another program."""
        client = await nats_client(self.url, asyncio.Event())
        yield client
        await client.close()

    def make_bell(self) -> NatsDoorbell:
        return NatsDoorbell(self.url, runtime=Runtime.system(), patience_seconds=PATIENCE)

    def recipe(self) -> str:
        return (
            "from endwell.doorbell.nats import NatsDoorbell; from endwell.runtime import Runtime\n"
            f"bell = NatsDoorbell({self.url!r}, runtime=Runtime.system(), patience_seconds={PATIENCE})"
        )

    @pytest.mark.covers("S0.22", "S0.59")
    async def test_a_wakeup_is_published_under_the_agents_own_subject(
        self, bell: Doorbell, client: Any
    ) -> None:
        listening = await client.subscribe("endwell.v1.*.ops.cmd.agent.coder.wakeup")
        await flush_all(client, PATIENCE)
        bell.ring(["work:acme.eu:coder/ops"])
        message = await listening.next_msg(PATIENCE)
        assert message.subject == "endwell.v1.acme%2Eeu.ops.cmd.agent.coder.wakeup"
        assert json.loads(message.data)["agent_id"] == "coder"

    async def test_any_program_may_ring(self, bell: Doorbell, client: Any) -> None:
        ear = Ear(bell)
        await client.publish("endwell.v1.acme%2Eeu.ops.cmd.agent.coder.wakeup", b"\xff not JSON")
        await becomes(lambda: bool(ear.calls))
        assert ear.calls == [frozenset({"work:acme.eu:coder"})]

    async def test_events_of_agents_are_no_rings(self, bell: Doorbell, client: Any) -> None:
        ear = Ear(bell)
        await client.publish("endwell.v1.default.main.evt.agent.coder.task", b"{}")
        await client.publish("endwell.v1.default.main.cmd.agent.last.wakeup", b"{}")
        await ear.wait_for("work:default:last")
        assert ear.calls == [frozenset({"work:default:last"})]


class TestNatsServer(ServedContract):
    """What a server may do to it."""

    def bell_at(self, url: str) -> Doorbell:
        return NatsDoorbell(url, runtime=Runtime.system(), patience_seconds=0.4)

    def nowhere(self) -> str:
        return "nats://me:secret@127.0.0.1:1"

    @pytest.fixture
    def server(self, own_nats: NatsServer) -> NatsServer:
        return own_nats

    @pytest.fixture
    def server_url(self, own_nats: NatsServer) -> str:
        return own_nats.url


class StrictServer(NatsServer):
    """Accepts a user that may subscribe to nothing."""

    def _command(self) -> list[str]:
        rules = self.home / "rules"
        rules.write_text(
            "authorization { users = [ { user: deaf, password: secret,"
            ' permissions: { subscribe: { deny: ["endwell.>"] } } } ] }'
        )
        return [*super()._command(), "-c", str(rules)]


async def test_server_that_forbids_subscribing_is_no_doorbell() -> None:
    server = StrictServer()
    await asyncio.to_thread(server.start)
    bell = NatsDoorbell(server.url.replace("//", "//deaf:secret@"), runtime=Runtime.system())
    await bell.open()
    await becomes(lambda: "permission" in (bell.health().last_error or "").lower())
    assert not bell.health().connected
    await bell.close()
    await asyncio.to_thread(server.stop)


async def test_opening_waits_for_the_subscription_and_sending_for_the_server() -> None:
    """One flush of the client does not suffice: it does not wait for what is yet to be written."""
    async with AttentiveNats() as server:
        bell = NatsDoorbell(server.url, runtime=Runtime.system(), patience_seconds=PATIENCE)
        await bell.open()
        await becomes(lambda: bell.health().connected)
        assert server.has_confirmed("SUB")
        bell.ring(["work:default:coder"])
        await bell.close()
        assert server.has_confirmed("PUB")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(UsageError) as refused:
        NatsDoorbell("nats://127.0.0.1", runtime=Runtime.system())
    assert refused.value.code == "missing_package"
    assert "endwell[nats]" in (refused.value.hint or "")
