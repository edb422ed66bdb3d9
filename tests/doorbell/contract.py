"""What every doorbell must do; each implementation's tests subclass `DoorbellContract`.

A subclass says how to make bells that meet each other, here and in another process. Nothing here
counts on a ring to arrive unless it was rung while the listener was known to listen.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from endwell.doorbell import EVERYTHING, Doorbell, is_rung
from endwell.runtime import child_process
from endwell.runtime.child_process import ChildProcess

PATIENCE = 600.0
OTHER_PROCESS = Path(__file__).with_name("other_process.py")

StartOther = Callable[..., ChildProcess]


class Ear:
    """Subscribes to a bell, remembers what it heard, and can wait for a topic."""

    def __init__(self, bell: Doorbell) -> None:
        self.calls: list[frozenset[str]] = []
        self.threads: set[int] = set()
        self._changed = asyncio.Event()
        self.unsubscribe = bell.subscribe(self._hear)

    def _hear(self, topics: frozenset[str]) -> None:
        self.calls.append(topics)
        self.threads.add(threading.get_ident())
        self._changed.set()

    def has_heard(self, topic: str) -> bool:
        return any(is_rung(topic, topics) for topics in self.calls)

    async def wait_for(self, topic: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not self.has_heard(topic):
                self._changed.clear()
                await self._changed.wait()


class DoorbellContract(ABC):
    """The promises of `endwell.doorbell.contract`."""

    @abstractmethod
    def make_bell(self) -> Doorbell:
        """A new bell, not yet open, at this test's one meeting place."""

    @abstractmethod
    def recipe(self) -> str:
        """Python code that leaves such a bell in the name `bell`, for another process."""

    @pytest.fixture
    async def bell(self) -> AsyncIterator[Doorbell]:
        bell = self.make_bell()
        await opened(bell)
        yield bell
        await bell.close()

    @pytest.fixture
    async def other_bell(self) -> AsyncIterator[Doorbell]:
        other = self.make_bell()
        await opened(other)
        yield other
        await other.close()

    @pytest.fixture
    def other_process(self) -> Iterator[StartOther]:
        children: list[ChildProcess] = []

        def start(*words: str) -> ChildProcess:
            argv = [sys.executable, str(OTHER_PROCESS), self.recipe(), *words]
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            children.append(child_process.start_process(argv, env))
            return children[-1]

        yield start
        for child in children:
            child.kill()
            child.wait(PATIENCE)
            child.close()

    async def test_a_ring_reaches_its_own_subscribers(self, bell: Doorbell) -> None:
        ear = Ear(bell)
        bell.ring(["work:default:coder", "ended:default"])
        await ear.wait_for("work:default:coder")
        await ear.wait_for("ended:default")

    async def test_a_ring_reaches_every_subscriber(self, bell: Doorbell) -> None:
        ears = [Ear(bell) for _ in range(3)]
        bell.ring(["a"])
        for ear in ears:
            await ear.wait_for("a")

    async def test_a_ring_reaches_another_bell(self, bell: Doorbell, other_bell: Doorbell) -> None:
        ear = Ear(other_bell)
        bell.ring(["a"])
        await ear.wait_for("a")

    async def test_a_ring_reaches_another_process(self, bell: Doorbell, other_process: StartOther) -> None:
        child = other_process("listen")
        assert await said(child) == ["ready"]
        bell.ring(["work:default:coder"])
        assert await said(child) == ["work:default:coder"]

    async def test_another_process_reaches_us(self, bell: Doorbell, other_process: StartOther) -> None:
        ear = Ear(bell)
        other_process("ring", "work:default:tester")
        await ear.wait_for("work:default:tester")

    async def test_killed_listener_does_not_disturb_others(
        self, bell: Doorbell, other_process: StartOther
    ) -> None:
        ear = Ear(bell)
        child = other_process("listen")
        assert await said(child) == ["ready"]
        child.kill()
        await asyncio.to_thread(child.wait, PATIENCE)
        for number in range(3):
            bell.ring([f"after:{number}"])
        await ear.wait_for("after:2")

    async def test_ringing_without_listeners_does_nothing(self, bell: Doorbell) -> None:
        bell.ring(["a"])
        bell.ring([])

    async def test_a_bell_can_be_rung_before_it_is_open_and_after_it_is_closed(self) -> None:
        bell = self.make_bell()
        ear = Ear(bell)
        bell.ring(["early"])
        await bell.open()
        await bell.close()
        bell.ring(["late"])
        await asyncio.sleep(0)
        assert not ear.has_heard("late")
        await bell.close()

    async def test_a_closed_bell_can_be_opened_again(self) -> None:
        bell = self.make_bell()
        ear = Ear(bell)
        await bell.open()
        await bell.close()
        await opened(bell)
        bell.ring(["again"])
        await ear.wait_for("again")
        await bell.close()

    async def test_subscriber_can_unsubscribe(self, bell: Doorbell) -> None:
        leaver, stayer = Ear(bell), Ear(bell)
        leaver.unsubscribe()
        leaver.unsubscribe()
        bell.ring(["a"])
        await stayer.wait_for("a")
        assert leaver.calls == []

    async def test_failing_subscriber_is_logged_and_others_are_called(
        self, bell: Doorbell, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(topics: frozenset[str]) -> None:
            raise LookupError("deaf")

        bell.subscribe(fail)
        ear = Ear(bell)
        bell.ring(["a"])
        await ear.wait_for("a")
        assert "deaf" in caplog.text

    async def test_rings_from_many_threads_are_heard_on_the_bells_own_loop(self, bell: Doorbell) -> None:
        ear = Ear(bell)
        threads = [threading.Thread(target=bell.ring, args=([f"from:{n}"],)) for n in range(8)]
        for thread in threads:
            thread.start()
        for n in range(8):
            await ear.wait_for(f"from:{n}")
        assert ear.threads == {threading.get_ident()}

    async def test_ten_thousand_rings_become_few_calls_and_the_last_arrives(
        self, bell: Doorbell, other_bell: Doorbell
    ) -> None:
        ear, other_ear = Ear(bell), Ear(other_bell)

        def ring_often() -> None:
            for number in range(10_000):
                bell.ring([f"topic:{number % 10}"])
            bell.ring(["last"])

        thread = threading.Thread(target=ring_often)
        thread.start()
        await ear.wait_for("last")
        await asyncio.to_thread(thread.join, PATIENCE)
        # The queue towards the other may have been full; a ring after the flood gets through.
        while not other_ear.has_heard("last"):
            bell.ring(["last"])
            await other_ear.wait_for("last")
        assert len(ear.calls) < 10_000

    async def test_rings_within_one_turn_of_the_loop_are_one_call(self, bell: Doorbell) -> None:
        ear = Ear(bell)
        for number in range(500):
            bell.ring([f"topic:{number % 5}"])
        bell.ring(["last"])
        await ear.wait_for("last")
        assert len(ear.calls) < 50

    async def test_very_many_topics_arrive_at_least_as_everything(
        self, bell: Doorbell, other_bell: Doorbell
    ) -> None:
        ear, other_ear = Ear(bell), Ear(other_bell)
        bell.ring([f"work:default:{number}:{'x' * 50}" for number in range(3000)])
        await ear.wait_for(f"work:default:2999:{'x' * 50}")
        await other_ear.wait_for(f"work:default:2999:{'x' * 50}")

    async def test_everything_can_be_rung(self, bell: Doorbell, other_bell: Doorbell) -> None:
        ear = Ear(other_bell)
        bell.ring([EVERYTHING])
        await ear.wait_for("anything")

    @pytest.mark.parametrize("topic", ["ünï", "\udc80", "two\nlines", "", "quote'\"\\", "nul\0"])
    async def test_an_odd_topic_raises_nothing(self, bell: Doorbell, topic: str) -> None:
        ear = Ear(bell)
        bell.ring([topic])
        bell.ring(["sane"])
        await ear.wait_for("sane")

    async def test_an_open_bell_is_healthy_and_a_closed_one_is_not_connected(self) -> None:
        bell = self.make_bell()
        assert not bell.health().connected
        await opened(bell)
        assert bell.health().connected
        assert bell.health().last_error is None
        await bell.close()
        assert not bell.health().connected


async def opened(bell: Doorbell) -> None:
    """Open it, and wait until it is connected: opening waits for a slow server only a moment."""
    await bell.open()
    await becomes(lambda: bell.health().connected)


async def becomes(question: Callable[[], bool]) -> None:
    """Wait until the answer is yes."""
    async with asyncio.timeout(PATIENCE):
        while not question():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.005)


async def said(child: ChildProcess) -> list[str]:
    """The next list the other process printed; empty at its end."""
    line = await asyncio.to_thread(child.read_line, PATIENCE)
    return [] if line is None else list(json.loads(line))
