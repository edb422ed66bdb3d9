"""The doorbell of a PostgreSQL store: NOTIFY, heard by every process that listens on the same database.

One connection listens, another one notifies, and neither is the store's: a bell is rung after the commit,
never inside it. Both come back by themselves after an outage; meanwhile the bell rings within the process,
says so in its health, and the other processes find work by polling.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from endwell.doorbell.coalesce import MOST_TOPICS, Coalescer
from endwell.doorbell.contract import EVERYTHING, BellHealth, Heard, Unsubscribe
from endwell.doorbell.lasting import Lasting
from endwell.runtime import Runtime
from endwell.runtime.processes import process_id
from endwell.settings import masked
from endwell.store.postgres.connection import READING, connect

CHANNEL = "endwell"
LARGEST_PAYLOAD = 7900
"""Bytes of topics in one NOTIFY; more is sent as `EVERYTHING`. PostgreSQL takes less than 8000."""
LOOK_SECONDS = 30.0
"""How often a silent line is tested: a server that vanished says nothing either."""
FLUSH_SECONDS = 2.0
"""How long closing waits for the last rings to be sent."""

_CLOSED = "the server closed the connection"

log = logging.getLogger(__name__)


class PostgresDoorbell:
    """Rings every process that has opened a bell on the same database."""

    def __init__(self, url: str, *, runtime: Runtime) -> None:
        self._url = url
        self._runtime = runtime
        self._lock = runtime.lock()
        self._heard = Coalescer(runtime.lock())
        self._pid: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._topics: set[str] = set()
        self._something = asyncio.Event()
        self._is_closing = False
        self._listener: Lasting | None = None
        self._sender: Lasting | None = None
        self._last_error: str | None = None

    async def open(self) -> None:
        if self._pid == process_id():
            return
        self._pid = process_id()
        self._loop = asyncio.get_running_loop()
        # New locks: a bell inherited by a forked child may bring one that is held for ever.
        self._lock = self._runtime.lock()
        self._topics, self._something, self._is_closing = set(), asyncio.Event(), False
        self._heard.start(self._loop, self._runtime.lock())
        self._sender = Lasting(self._connect, self._send, on_error=self._note)
        self._listener = Lasting(self._connect_and_listen, self._listen, on_error=self._note)
        await self._sender.open(self._runtime, "endwell-doorbell-sender")
        await self._listener.open(self._runtime, "endwell-doorbell-listener")

    async def close(self) -> None:
        ours, self._pid = self._pid == process_id(), None
        if not ours:  # never opened, or a forked child that holds its parent's bell
            return
        self._heard.stop()
        self._is_closing = True
        self._something.set()
        if self._listener is not None and self._sender is not None:
            await self._listener.close(0)
            await self._sender.close(FLUSH_SECONDS if self._sender.is_connected else 0)
        self._listener = self._sender = None

    def ring(self, topics: Collection[str]) -> None:
        # Before any lock: in a forked child a lock may be held by a thread that does not exist there.
        if self._pid != process_id() or self._loop is None or not topics:
            return
        self._heard.add(topics)
        self._keep(topics)
        with suppress(RuntimeError):  # the loop closed without closing the bell
            self._loop.call_soon_threadsafe(self._something.set)

    def _keep(self, topics: Collection[str]) -> None:
        with self._lock:
            self._topics.update(topics)
            if len(self._topics) > MOST_TOPICS:
                self._topics = {EVERYTHING}

    def subscribe(self, callback: Heard) -> Unsubscribe:
        return self._heard.subscribe(callback)

    def health(self) -> BellHealth:
        lines = (self._listener, self._sender)
        ours = self._pid == process_id()
        connected = ours and all(line is not None and line.is_connected for line in lines)
        return BellHealth(kind="postgresql", connected=connected, last_error=self._last_error)

    async def _connect(self) -> Any:
        return await connect(self._url, READING)

    async def _connect_and_listen(self) -> Any:
        connection = await self._connect()
        try:
            await connection.add_listener(CHANNEL, self._take)
        except BaseException:
            connection.terminate()
            raise
        if self._last_error is not None:
            self._last_error = None
            self._heard.add({EVERYTHING})  # what was rung while nobody listened is not known
        return connection

    def _take(self, _connection: Any, pid: int, _channel: str, payload: object) -> None:
        sender = self._sender.connection if self._sender is not None else None
        if sender is None or sender.is_closed() or sender.get_server_pid() != pid:
            self._heard.add([topic for topic in str(payload).split("\n") if topic])

    async def _listen(self, connection: Any) -> None:
        """Hear others until the connection breaks."""
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        while not connection.is_closed() and not await self._runtime.wait(lost, LOOK_SECONDS):
            await connection.execute("SELECT 1")
        raise ConnectionError(_CLOSED)

    async def _send(self, connection: Any) -> None:
        """One NOTIFY at a time; what is rung meanwhile goes into the next."""
        connection.add_termination_listener(lambda _: self._something.set())
        while not connection.is_closed():
            self._something.clear()
            with self._lock:
                topics, self._topics = self._topics, set()
            if topics:
                await self._notify(connection, topics)
            elif self._is_closing:
                return
            elif not await self._runtime.wait(self._something, LOOK_SECONDS):
                await connection.execute("SELECT 1")
        raise ConnectionError(_CLOSED)

    async def _notify(self, connection: Any, topics: set[str]) -> None:
        try:
            await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, packed(topics))
        except BaseException:
            self._keep(topics)  # for the next connection
            raise

    def _note(self, error: Exception) -> None:
        if self._last_error is None:
            log.warning("no doorbell at %s; polling still finds the work: %s", masked(self._url), error)
        self._last_error = str(error) or type(error).__name__


def packed(topics: Collection[str]) -> str:
    """The topics as one payload, or `EVERYTHING` when they do not fit into one."""
    text = "\n".join(topics)
    try:
        fits = len(text.encode()) <= LARGEST_PAYLOAD
    except UnicodeEncodeError:
        return EVERYTHING
    return text if fits and "\0" not in text else EVERYTHING
