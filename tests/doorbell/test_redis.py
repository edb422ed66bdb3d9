"""The Redis doorbell: the contract, what a server may do to it, and what is special about channels."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import AsyncIterator

import pytest

from endwell.doorbell import Doorbell
from endwell.doorbell.redis import RedisDoorbell
from endwell.errors import UsageError
from endwell.redis_client import RedisClient
from endwell.runtime import Runtime
from tests.doorbell.contract import PATIENCE, DoorbellContract, Ear, becomes
from tests.doorbell.served import ServedContract
from tests.servers.small import ValkeyServer


class TestRedisDoorbell(DoorbellContract):
    """Bells on a shared server, under a prefix of the test's own."""

    @pytest.fixture(autouse=True)
    def _place(self, redis_url: str) -> None:
        self.url = redis_url
        self.prefix = f"test[{uuid.uuid4().hex}]*:"  # with characters that mean something in patterns

    @pytest.fixture
    async def client(self) -> AsyncIterator[RedisClient]:
        """Another program."""
        client = RedisClient(self.url)
        yield client
        await client.close()

    def make_bell(self) -> RedisDoorbell:
        return RedisDoorbell(
            self.url, runtime=Runtime.system(), prefix=self.prefix, patience_seconds=PATIENCE
        )

    def recipe(self) -> str:
        return (
            "from endwell.doorbell.redis import RedisDoorbell; from endwell.runtime import Runtime\n"
            f"bell = RedisDoorbell({self.url!r}, runtime=Runtime.system(), prefix={self.prefix!r},"
            f" patience_seconds={PATIENCE})"
        )

    async def test_a_wakeup_is_published_under_the_agents_own_name(
        self, bell: Doorbell, client: RedisClient
    ) -> None:
        async with client.new_subscription() as listening:
            await listening.subscribe(f"{self.prefix}endwell.v1.acme%2Eeu.ops.cmd.agent.coder.wakeup")
            await listening.get_message(timeout=PATIENCE)
            bell.ring(["work:acme.eu:coder/ops"])
            message = await listening.get_message(ignore_subscribe_messages=True, timeout=PATIENCE)
        assert json.loads(message["data"])["agent_id"] == "coder"

    async def test_any_program_may_ring(self, bell: Doorbell, client: RedisClient) -> None:
        ear = Ear(bell)
        await client.ask(
            "PUBLISH", f"{self.prefix}endwell.v1.default.ops.cmd.agent.coder.wakeup", b"\xff not JSON"
        )
        await becomes(lambda: bool(ear.calls))
        assert ear.calls == [frozenset({"work:default:coder"})]

    async def test_another_prefix_is_another_bell(self, bell: Doorbell, client: RedisClient) -> None:
        ear = Ear(bell)
        for prefix in ("", "test[x]*:", f"x{self.prefix}"):
            await client.ask("PUBLISH", f"{prefix}endwell.v1.default.main.cmd.agent.coder.wakeup", b"{}")
        await client.ask("PUBLISH", f"{self.prefix}endwell.v1.default.main.cmd.agent.last.wakeup", b"{}")
        await ear.wait_for("work:default:last")
        assert not ear.has_heard("work:default:coder")


class TestRedisServer(ServedContract):
    """What a server may do to it."""

    def bell_at(self, url: str) -> Doorbell:
        return RedisDoorbell(url, runtime=Runtime.system(), patience_seconds=0.4)

    def nowhere(self) -> str:
        return "redis://me:secret@127.0.0.1:1/0"

    @pytest.fixture
    def server(self, own_valkey: ValkeyServer) -> ValkeyServer:
        return own_valkey

    @pytest.fixture
    def server_url(self, own_valkey: ValkeyServer) -> str:
        return own_valkey.url


async def test_server_that_forbids_subscribing_is_no_doorbell(own_valkey: ValkeyServer) -> None:
    client = RedisClient(own_valkey.url)
    await client.ask("ACL", "SETUSER", "deaf", "on", ">secret", "+@all", "resetchannels")
    await client.close()
    bell = RedisDoorbell(own_valkey.url.replace("//", "//deaf:secret@"), runtime=Runtime.system())
    await bell.open()
    await becomes(lambda: "permission" in (bell.health().last_error or "").lower())
    assert not bell.health().connected
    await bell.close()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(UsageError) as refused:
        RedisDoorbell("redis://127.0.0.1", runtime=Runtime.system())
    assert refused.value.code == "missing_package"
    assert "endwell[redis]" in (refused.value.hint or "")


def test_a_malformed_url_is_refused_without_its_password() -> None:
    with pytest.raises(UsageError) as refused:
        RedisDoorbell("redis://me:secret@host:port/x", runtime=Runtime.system())
    assert "secret" not in str(refused.value)
