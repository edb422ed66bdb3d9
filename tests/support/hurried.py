"""Time that passes faster: a minute of an idle process in a few seconds, with all its loops at work."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from endwell.runtime import Runtime, SystemClock
from endwell.runtime.ids import SystemIds
from endwell.runtime.threads import ThreadPool

SPEED = 20
"""Seconds in the hurried world to one of ours."""


class HurriedClock(SystemClock):
    """Runs `SPEED` times as fast."""

    def __init__(self) -> None:
        self._start_us = super().now_us()
        self._start = super().monotonic()

    def now_us(self) -> int:
        return self._start_us + SPEED * (super().now_us() - self._start_us)

    def monotonic(self) -> float:
        return self._start + SPEED * (super().monotonic() - self._start)


@dataclass(frozen=True, kw_only=True, slots=True)
class HurriedRuntime(Runtime):
    """Rests are shorter here; timeouts of servers, which are as slow as ever, are not."""

    async def sleep(self, seconds: float) -> None:
        await Runtime.sleep(self, seconds / SPEED)

    async def wait(self, event: asyncio.Event, timeout: float | None = None) -> bool:
        return await Runtime.wait(self, event, None if timeout is None else timeout / SPEED)


def hurried() -> HurriedRuntime:
    clock = HurriedClock()
    return HurriedRuntime(clock=clock, ids=SystemIds(clock), pool=ThreadPool(8))
