"""A connection that comes back: made when the bell opens, used until it breaks, made again after a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from endwell.runtime import Runtime

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0


class Lasting:
    """Runs `serve(connection)` on one connection after another, until `serve` returns by itself."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        serve: Callable[[Any], Awaitable[None]],
        *,
        on_error: Callable[[Exception], None],
    ) -> None:
        self._connect = connect
        self._serve = serve
        self._on_error = on_error
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None]
        self.connection: Any = None

    @property
    def is_connected(self) -> bool:
        return self.connection is not None and not self.connection.is_closed()

    async def open(self, runtime: Runtime, name: str) -> None:
        """Start; returns after the first try, whether it succeeded or not."""
        self._task = runtime.spawn(self._run(runtime), name)
        await self._tried.wait()

    async def close(self, grace_seconds: float) -> None:
        """End, at once or after `serve` had a moment to return."""
        await asyncio.wait([self._task], timeout=grace_seconds)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self, runtime: Runtime) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                self.connection = await self._connect()
                self._tried.set()
                pause = FIRST_PAUSE_SECONDS
                await self._serve(self.connection)
                return
            except Exception as error:
                self._on_error(error)
            finally:
                self._let_go()
            await runtime.sleep(pause * (0.5 + runtime.ids.fraction()))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _let_go(self) -> None:
        self._tried.set()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.terminate()
