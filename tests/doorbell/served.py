"""What every doorbell on a server must survive; the tests of each kind subclass `ServedContract`.

The server is the test's own: it is killed and started again, and reached through a proxy that can turn into
a black hole. A worker at such a bell is the matter of `tests/worker/test_bells.py`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Protocol

import pytest

from endwell.doorbell import EVERYTHING, Doorbell, server_bell
from tests.doorbell.contract import PATIENCE, Ear, becomes, opened
from tests.servers.proxy import Proxy


class Killable(Protocol):
    """A server that can be killed and started again."""

    def start(self) -> None: ...

    def kill(self) -> None: ...


def has_heard_everything(ear: Ear) -> bool:
    return any(EVERYTHING in topics for topics in ear.calls)


class ServedContract(ABC):
    """The promises of `endwell.doorbell.server_bell`."""

    @abstractmethod
    def bell_at(self, url: str) -> Doorbell:
        """A new bell, not yet open, that asks a silent line several times a second."""

    @abstractmethod
    def nowhere(self) -> str:
        """The URL, with a password, of a server that is not there."""

    @pytest.fixture
    def server(self) -> Killable:
        """The test's own server."""
        raise NotImplementedError

    @pytest.fixture
    def server_url(self) -> str:
        """Where it is."""
        raise NotImplementedError

    @pytest.fixture
    async def proxy(self, server_url: str) -> AsyncIterator[Proxy]:
        async with Proxy(server_url) as proxy:
            yield proxy

    @pytest.fixture
    async def near(self, server_url: str) -> AsyncIterator[Doorbell]:
        """A bell that reaches the server directly."""
        bell = self.bell_at(server_url)
        await opened(bell)
        yield bell
        await bell.close()

    @pytest.fixture
    async def far(self, proxy: Proxy) -> AsyncIterator[Doorbell]:
        """A bell that reaches the server through the proxy."""
        bell = self.bell_at(proxy.url)
        await opened(bell)
        yield bell
        await bell.close()

    async def test_a_bell_comes_back_after_its_server_does(
        self, server: Killable, near: Doorbell, far: Doorbell
    ) -> None:
        ear, other_ear = Ear(near), Ear(far)
        await asyncio.to_thread(server.kill)
        await becomes(lambda: not near.health().connected and not far.health().connected)
        near.ring(["within"])
        await ear.wait_for("within")
        await becomes(lambda: has_heard_everything(other_ear))  # look: rings will be missed
        assert near.health().last_error
        ear.calls.clear()
        other_ear.calls.clear()

        await asyncio.to_thread(server.start)
        await becomes(lambda: near.health().connected and far.health().connected)
        near.ring(["again"])
        await other_ear.wait_for("again")
        await becomes(lambda: has_heard_everything(ear))  # rings may have been missed
        await becomes(lambda: near.health().last_error is None)

    async def test_silent_connection_is_noticed_and_replaced(
        self, near: Doorbell, far: Doorbell, proxy: Proxy
    ) -> None:
        ear = Ear(far)
        proxy.black_hole()
        await becomes(lambda: not far.health().connected)
        await becomes(lambda: has_heard_everything(ear))
        assert "answer" in (far.health().last_error or "")
        near.ring(["into the void"])
        proxy.cut_all()  # what was under way is lost
        proxy.heal()
        await becomes(lambda: far.health().connected)
        ear.calls.clear()
        near.ring(["again"])
        await ear.wait_for("again")
        far.ring(["back"])

    async def test_slow_connection_is_kept(self, near: Doorbell, far: Doorbell, proxy: Proxy) -> None:
        ear = Ear(far)
        lines = proxy.accepted
        proxy.black_hole()
        await becomes(lambda: not far.health().connected)
        proxy.heal()
        await becomes(lambda: far.health().connected)
        assert far.health().last_error is None
        assert proxy.accepted == lines, "counted as dead, and not given up"
        near.ring(["again"])
        await ear.wait_for("again")

    async def test_ring_that_was_not_answered_is_sent_again_on_the_next_connection(
        self, near: Doorbell, far: Doorbell, proxy: Proxy
    ) -> None:
        ear = Ear(near)
        proxy.black_hole()
        far.ring(["held back"])
        await becomes(lambda: not far.health().connected)
        proxy.cut_all()
        proxy.heal()
        await ear.wait_for("held back")

    async def test_a_bell_closes_while_its_server_does_not_answer(self, proxy: Proxy) -> None:
        bell = self.bell_at(proxy.url)
        await opened(bell)
        proxy.black_hole()
        bell.ring(["unheard"])
        async with asyncio.timeout(PATIENCE):
            await bell.close()
        assert not bell.health().connected

    async def test_a_bell_opens_although_its_server_does_not_answer(self, proxy: Proxy) -> None:
        proxy.black_hole()
        bell = self.bell_at(proxy.url)
        ear = Ear(bell)
        async with asyncio.timeout(PATIENCE):
            await bell.open()
        bell.ring(["within"])
        await ear.wait_for("within")
        assert not bell.health().connected
        await bell.close()

    async def test_bell_that_connects_late_rings_everything(
        self, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server_bell, "OPEN_SECONDS", 0.01)
        proxy.black_hole()
        bell = self.bell_at(proxy.url)
        ear = Ear(bell)
        await bell.open()
        assert bell.health().last_error
        await becomes(lambda: has_heard_everything(ear))  # look: rings are missed for now
        ear.calls.clear()

        proxy.heal()
        await becomes(lambda: bell.health().connected)
        await becomes(lambda: has_heard_everything(ear))  # earlier rings may have been missed
        await bell.close()

    async def test_bell_without_a_server_rings_within_its_process(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        bell = self.bell_at(self.nowhere())
        ear = Ear(bell)
        await bell.open()
        bell.ring(["a"])
        await ear.wait_for("a")
        assert not bell.health().connected
        assert caplog.text.count("polling still finds the work") == 1
        assert "secret" not in caplog.text
        await bell.close()
