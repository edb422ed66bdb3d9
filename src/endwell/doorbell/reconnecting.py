"""A connection that comes back: made when the bell opens, used until it breaks, made again after a pause."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from endwell.runtime import Runtime

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
CONNECT_SECONDS = 5.0
"""How long a server may take to let us in."""
OPEN_SECONDS = 1.0
"""How long opening waits for the first try: whoever only submits must not hang at a doorbell."""
END_SECONDS = 1.0

log = logging.getLogger(__name__)


class Endable(Protocol):
    """Something that can be let go of."""

    async def end(self) -> None: ...


Connection = TypeVar("Connection", bound=Endable)


class Reconnecting(Generic[Connection]):
    """Runs `serve(connection)` on one connection after another, until `serve` returns by itself."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        serve: Callable[[Connection], Awaitable[None]],
        *,
        on_error: Callable[[Exception], None],
    ) -> None:
        self._connect = connect
        self._serve = serve
        self._on_error = on_error
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None]
        self.connection: Connection | None = None

    async def open(self, runtime: Runtime, name: str) -> None:
        """Start; returns after the first try, whether it succeeded or not."""
        self._task = runtime.spawn(self._run(runtime), name)
        await runtime.wait(self._tried, OPEN_SECONDS)

    async def close(self, grace_seconds: float) -> None:
        """End, at once or after `serve` had a moment to return."""
        await asyncio.wait([self._task], timeout=grace_seconds)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self, runtime: Runtime) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                async with runtime.timeout(CONNECT_SECONDS):
                    self.connection = await self._connect()
                self._tried.set()
                pause = FIRST_PAUSE_SECONDS
                await self._serve(self.connection)
                return
            except Exception as error:
                self._on_error(error)
            finally:
                await self._let_go(runtime)
            await runtime.sleep(pause * (0.5 + runtime.ids.fraction()))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _let_go(self, runtime: Runtime) -> None:
        self._tried.set()
        connection, self.connection = self.connection, None
        if connection is None:
            return
        try:
            async with runtime.timeout(END_SECONDS):
                await connection.end()
        except Exception as error:
            log.debug("a lost connection could not be closed in order: %r", error)
