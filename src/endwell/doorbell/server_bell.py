"""What the bells that a server carries have in common, whichever server it is.

Rings are gathered and sent by one task, one answered request at a time, so that a burst costs one request
and ringing never waits. A line that says nothing is asked; one that does not answer counts as dead long
before it is given up: the health says so, and everybody in this process is told to look. When a line comes
back, they are told again, because what was rung meanwhile is not known.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, ClassVar, Protocol

from endwell.doorbell.coalesce import MOST_TOPICS, Coalescer
from endwell.doorbell.contract import EVERYTHING, BellHealth, Heard, Unsubscribe
from endwell.doorbell.reconnecting import Reconnecting
from endwell.runtime.base import Deadline, Runtime
from endwell.runtime.processes import process_id
from endwell.settings import masked

ANSWER_SECONDS = 5.0
"""How long a server may take to answer before its connection is given up."""
BREATH_SECONDS = 0.003
"""Between two requests: the first ring of a burst goes out at once, those that follow it go together.

A ring costs as much as a third of a submission: one for each of a script's would slow all of them down.
"""
FLUSH_SECONDS = 1.0
"""How long closing waits for the last rings to be sent."""

CLOSED = "the server closed the connection"
NO_ANSWER = "the server does not answer"
NOT_YET = "the server has not let us in yet"

Take = Callable[[Collection[str]], None]

log = logging.getLogger(__name__)


class Subscription(Protocol):
    """One connection on which rings are sent and heard."""

    lost: asyncio.Event
    """Set when it is noticed that the connection is gone, or of no use."""

    @property
    def why(self) -> str:
        """What became of it then."""

    async def send(self, topics: Collection[str]) -> None:
        """Returns when the server has them."""

    async def ping(self) -> None:
        """Returns when it is certain that rings still come through."""

    async def end(self) -> None:
        """Let go of the connection."""


class ServerDoorbell(ABC):
    """Rings every process that has opened a bell at the same server.

    `look_seconds`: how often a silent line is asked; `patience_seconds`: after how long without an answer
    it counts as dead.
    """

    kind: ClassVar[str]

    def __init__(self, url: str, *, runtime: Runtime, look_seconds: float, patience_seconds: float) -> None:
        self._url = url
        self._runtime = runtime
        self._look_seconds = look_seconds
        self._patience_seconds = patience_seconds
        self._lock = runtime.lock()
        self._heard = Coalescer(runtime.lock())
        self._pid: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._topics: set[str] = set()
        self._something = asyncio.Event()
        self._is_closing = False
        self._is_silent = False
        self._waiting: Deadline | None = None
        self._line: Reconnecting[Subscription] | None = None
        self._last_error: str | None = None

    @abstractmethod
    async def _connect(self, take: Take) -> Subscription:
        """A line that already listens; `take` is told what others rang."""

    async def open(self) -> None:
        if self._pid == process_id():
            return
        self._pid = process_id()
        self._loop = asyncio.get_running_loop()
        # New locks: a bell inherited by a forked child may bring one that is held for ever.
        self._lock = self._runtime.lock()
        self._topics, self._something = set(), asyncio.Event()
        self._is_closing = self._is_silent = False
        self._last_error = None
        self._heard.start(self._loop, self._runtime.lock())
        self._line = Reconnecting(self._connected, self._serve, on_error=self._note)
        await self._line.open(self._runtime, f"endwell-doorbell-{self.kind}")
        if self._line.connection is None and self._last_error is None:
            self._note(ConnectionError(NOT_YET))  # when it does, look: until then others ring unheard

    async def close(self) -> None:
        ours, self._pid = self._pid == process_id(), None
        if not ours:  # never opened, or a forked child that holds its parent's bell
            return
        self._heard.stop()
        self._is_closing = True
        self._something.set()
        line, self._line = self._line, None
        if line is not None:
            await line.close(FLUSH_SECONDS if line.connection is not None else 0)

    def ring(self, topics: Collection[str]) -> None:
        # Before any lock: in a forked child a lock may be held by a thread that does not exist there.
        if self._pid != process_id() or self._loop is None or not topics:
            return
        self._heard.add(topics)
        self._keep(topics)
        if asyncio._get_running_loop() is self._loop:  # which need not be woken, then
            self._something.set()
            return
        with suppress(RuntimeError):  # the loop closed without closing the bell
            self._loop.call_soon_threadsafe(self._something.set)

    def subscribe(self, callback: Heard) -> Unsubscribe:
        return self._heard.subscribe(callback)

    def health(self) -> BellHealth:
        line = self._line if self._pid == process_id() else None
        connection = None if line is None else line.connection
        connected = connection is not None and not connection.lost.is_set() and not self._is_silent
        return BellHealth(kind=self.kind, connected=connected, last_error=self._last_error)

    def _keep(self, topics: Collection[str]) -> None:
        with self._lock:
            self._topics.update(topics)
            if len(self._topics) > MOST_TOPICS:
                self._topics = {EVERYTHING}

    async def _connected(self) -> Subscription:
        line = await self._connect(self._heard.add)
        if self._last_error is not None:
            log.info("the doorbell at %s is back", masked(self._url))
            self._last_error = None
            self._heard.add({EVERYTHING})
        return line

    async def _serve(self, line: Subscription) -> None:
        """One request at a time; what is rung meanwhile goes into the next."""
        watching = self._runtime.spawn(self._watch(line), f"endwell-doorbell-{self.kind}-line")
        asked_at = self._runtime.clock.monotonic()
        try:
            while not line.lost.is_set():
                self._something.clear()
                has_sent = await self._send_what_waits(line)
                if self._is_closing and not has_sent:
                    return
                left = asked_at + self._look_seconds - self._runtime.clock.monotonic()
                if left <= 0 or not (has_sent or await self._runtime.wait(self._something, left)):
                    await self._answered(line.ping())
                    asked_at = self._runtime.clock.monotonic()
                elif has_sent:
                    await self._runtime.sleep(BREATH_SECONDS)
        finally:
            watching.cancel()
        raise ConnectionError(line.why)

    async def _watch(self, line: Subscription) -> None:
        await line.lost.wait()
        self._something.set()
        if self._waiting is not None:
            self._waiting.reschedule(0)  # nobody will answer

    async def _send_what_waits(self, line: Subscription) -> bool:
        with self._lock:
            topics, self._topics = self._topics, set()
        if not topics:
            return False
        try:
            await self._answered(line.send(topics))
        except BaseException:
            self._keep(topics)  # for the next connection
            raise
        return True

    async def _answered(self, asking: Coroutine[Any, Any, None]) -> None:
        """Wait for the server; say so when it takes long, give the connection up when it takes too long."""
        timer = self._runtime.later(self._patience_seconds, self._fall_silent)
        try:
            async with self._runtime.timeout(ANSWER_SECONDS) as self._waiting:
                await asking
        except TimeoutError:
            raise ConnectionError(NO_ANSWER) from None
        finally:
            timer.cancel()
            self._waiting = None
            was_silent, self._is_silent = self._is_silent, False
        if was_silent:
            self._last_error = None
            self._heard.add({EVERYTHING})

    def _fall_silent(self) -> None:
        self._is_silent = True
        self._note(ConnectionError(NO_ANSWER))

    def _note(self, error: Exception) -> None:
        if self._last_error in (None, NOT_YET):  # which is no reason yet
            log.warning("no doorbell at %s; polling still finds the work: %s", masked(self._url), error)
            self._heard.add({EVERYTHING})
        self._last_error = str(error) or type(error).__name__
