"""The loops of one end of the streams: each runs again and again, and backs off from a server that fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from endwell.errors import StoreError
from endwell.redis_client import Refusal, Unreachable
from endwell.runtime.backoff import Backoff
from endwell.runtime.base import Runtime
from endwell.settings import mask_url

log = logging.getLogger(__name__)

FAILURES = (Unreachable, Refusal, StoreError)
"""What fails when a server is away, or has lost its data."""


class StreamLoops:
    """Runs loops, and knows whether the server answers.

    `set_up` creates what a server has lost. `on_down` is called when the server is away.
    """

    def __init__(
        self,
        runtime: Runtime,
        url: str,
        set_up: Callable[[], Awaitable[None]],
        on_down: Callable[[], None] = lambda: None,
    ) -> None:
        self._runtime = runtime
        self._shown_url = mask_url(url)
        self._set_up = set_up
        self._on_down = on_down
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self.is_up = False
        """Whether the server answered the last time it was asked."""
        self.failures = 0

    def start(self, name: str, run_once: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run a function again and again until `stop`, or until its task is cancelled."""
        self._tasks.append(self._runtime.spawn(self._repeat(run_once), f"endwell-stream-{name}"))
        return self._tasks[-1]

    async def stop(self) -> None:
        """Cancel all loops, at any point: each step of them may be repeated."""
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _repeat(self, run_once: Callable[[], Awaitable[None]]) -> None:
        backoff = Backoff(self._runtime)
        while not self._is_stopping:
            try:
                await run_once()
                backoff.reset()
                continue
            except FAILURES as error:
                self.on_failure(error)
                if isinstance(error, Refusal):
                    await self.try_to_set_up()
            except Exception:
                self.failures += 1
                log.exception("a round at the task stream failed")
            await backoff.pause()

    async def try_to_set_up(self) -> None:
        """Create what is missing; a server that is away is tried again later."""
        try:
            await self._set_up()
        except FAILURES as error:
            self.on_failure(error)

    def on_answer(self) -> None:
        """The server answers."""
        if not self.is_up:
            self.is_up = True
            log.info("the task stream at %s is there", self._shown_url)

    def on_failure(self, error: Exception) -> None:
        """Report it once, if the server is away."""
        self.failures += 1
        if not isinstance(error, Unreachable):
            log.warning("the task stream at %s: %s", self._shown_url, error)
            return
        if self.is_up:
            log.warning("no task stream at %s; work is found by polling: %s", self._shown_url, error)
        self.is_up = False
        self._on_down()
