"""Doorbells of a simulated machine. A ring takes a moment, and may be lost, late, doubled or out of order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from endwell.doorbell.coalesce import Coalescer
from endwell.doorbell.contract import BellHealth, OnRing, Unsubscribe
from endwell.runtime.loops import call_later
from endwell.runtime.virtual.scheduler import Dice

RING_SECONDS: Final = 0.002
"""Longest time that a ring takes without a fault."""

Fate = Callable[[str, str, frozenset[str]], list[float]]
"""From ringer, listener and topics: the seconds after which the ring arrives, one for each arrival."""


class BellNetwork:
    """All bells of one machine. `fate` decides when each ring arrives."""

    def __init__(self, dice: Dice, fate: Fate | None = None) -> None:
        self.dice = dice
        self.fate: Fate = fate or self.usual_delays
        self.is_immediate = False
        self._bells: list[SimulatedDoorbell] = []

    def usual_delays(self, ringer: str, listener: str, topics: frozenset[str]) -> list[float]:
        """Once, and soon."""
        return [0.0 if self.is_immediate else self.dice.random() * RING_SECONDS]

    def add_bell(self, bell: SimulatedDoorbell) -> None:
        if bell not in self._bells:
            self._bells.append(bell)

    def remove_bell(self, bell: SimulatedDoorbell) -> None:
        with contextlib.suppress(ValueError):
            self._bells.remove(bell)

    def ring_all(self, topics: frozenset[str]) -> None:
        """Ring every bell, without a ringer."""
        for bell in tuple(self._bells):
            bell.deliver(topics, 0.0)

    def carry_ring(self, ringer: SimulatedDoorbell, topics: frozenset[str]) -> None:
        for bell in tuple(self._bells):
            for seconds in [0.0] if bell is ringer else self.fate(ringer.owner, bell.owner, topics):
                bell.deliver(topics, seconds)


NewLock = Callable[[], contextlib.AbstractContextManager[bool]]


def _no_lock() -> contextlib.AbstractContextManager[bool]:
    """In a scheduler there is one thread."""
    return contextlib.nullcontext(True)


class SimulatedDoorbell:
    """One process's bell."""

    def __init__(self, network: BellNetwork, owner: str, new_lock: NewLock = _no_lock) -> None:
        self.owner = owner
        self._network = network
        self._new_lock = new_lock
        self._coalescer = Coalescer(new_lock())
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._coalescer.start(self._loop, self._new_lock())
            self._network.add_bell(self)

    async def close(self) -> None:
        self._loop = None
        self._coalescer.stop()
        self._network.remove_bell(self)

    def ring(self, topics: Collection[str]) -> None:
        if self._loop is not None and topics:
            self._network.carry_ring(self, frozenset(topics))

    def deliver(self, topics: frozenset[str], seconds: float) -> None:
        """Call this bell's subscribers after some seconds."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if seconds <= 0:
            self._coalescer.add(topics)
        else:
            call_later(loop, seconds, partial(self._coalescer.add, topics))

    def subscribe(self, callback: OnRing) -> Unsubscribe:
        return self._coalescer.subscribe(callback)

    def health(self) -> BellHealth:
        return BellHealth(kind="simulated", connected=self._loop is not None)
