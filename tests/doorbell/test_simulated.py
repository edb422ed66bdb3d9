"""The simulator's doorbell is held to the same contract as the real ones, and can be made to fail."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest

from endwell.doorbell import Doorbell
from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.bell_network import BellNetwork, SimulatedDoorbell
from tests.doorbell.contract import DoorbellContract, Ear


class TestSimulatedDoorbell(DoorbellContract):
    """Bells of one simulated machine, on a real event loop. There are no other real processes in it."""

    test_a_ring_reaches_another_process: ClassVar[None] = None  # type: ignore[assignment]
    test_another_process_reaches_us: ClassVar[None] = None  # type: ignore[assignment]
    test_killed_listener_does_not_disturb_others: ClassVar[None] = None  # type: ignore[assignment]

    @pytest.fixture(autouse=True)
    def _network(self) -> None:
        self.network = BellNetwork(Dice(1))

    def make_bell(self) -> Doorbell:
        return SimulatedDoorbell(self.network, "member", threading.Lock)

    def recipe(self) -> str:
        raise NotImplementedError

    async def test_a_lost_ring_does_not_arrive_and_a_later_one_does(
        self, bell: Doorbell, other_bell: Doorbell
    ) -> None:
        ear = Ear(other_bell)
        self.network.fate = lambda *_: []
        bell.ring(["lost"])
        self.network.fate = self.network.usual_delays
        bell.ring(["found"])
        await ear.wait_for("found")
        assert not ear.has_heard("lost")

    async def test_a_doubled_ring_arrives_twice(self, bell: Doorbell, other_bell: Doorbell) -> None:
        ear = Ear(other_bell)
        self.network.fate = lambda *_: [0.0, 0.01]
        bell.ring(["twice"])
        await ear.wait_for("twice")
        first = len(ear.calls)
        ear.calls.clear()
        await ear.wait_for("twice")
        assert first == 1
