"""What the doorbells of all servers have in common: batching of rings, liveness checks, reconnecting.

One task gathers rings and sends them, one answered request at a time: a burst costs one request, and ringing
never waits. A connection that is silent is pinged. While a ping is late, `health()` says that the bell is not
connected, and the subscribers of this process are told to look everywhere. They are told so again when the
connection is back, because rings may have been missed.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, ClassVar, Protocol

from endwell.doorbell.coalesce import MOST_TOPICS, Coalescer
from endwell.doorbell.contract import EVERYTHING, BellHealth, OnRing, Unsubscribe
from endwell.runtime.backoff import Backoff
from endwell.runtime.base import Deadline, Runtime
from endwell.runtime.processes import process_id
from endwell.settings import mask_url

ANSWER_SECONDS = 5.0
"""How long a server may take to answer before its connection is given up."""
CONNECT_SECONDS = 5.0
"""How long a server may take to accept a connection."""
OPEN_SECONDS = 1.0
"""How long `open()` waits for the first attempt: a program that only submits must not hang at a doorbell."""
BREATH_SECONDS = 0.003
"""Between two requests: the first ring of a burst goes out at once, those that follow it go together.

A ring costs a third of a submission; a ring for each submission of a script would slow all of them down.
"""
FLUSH_SECONDS = 1.0
"""How long closing waits for the last rings to be sent."""
END_SECONDS = 1.0
"""How long an orderly end of a connection may take."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

CLOSED = "the server closed the connection"
NO_ANSWER = "the server does not answer"
NOT_YET = "the server has not accepted the connection yet"

OnTopics = Callable[[Collection[str]], None]
"""Called with the topics that another process rang."""

log = logging.getLogger(__name__)


class Subscription(Protocol):
    """One connection on which rings are sent and received."""

    lost: asyncio.Event
    """Set when the connection is known to be gone, or of no use."""

    @property
    def why(self) -> str:
        """Why it was lost."""

    async def listen(self) -> None:
        """Subscribe; return when it is certain that rings come through."""

    async def send(self, topics: Collection[str]) -> None:
        """Return when the server has received them."""

    async def ping(self) -> None:
        """Return when a ring has made its way to the server and back."""

    async def end(self) -> None:
        """Close the connection."""


class ServerDoorbell(ABC):
    """Rings every process that has opened a bell at the same server.

    `look_seconds`: how long a connection may be silent before it is pinged. `patience_seconds`: how late an
    answer may be before the bell counts as disconnected.
    """

    kind: ClassVar[str]

    def __init__(self, url: str, *, runtime: Runtime, look_seconds: float, patience_seconds: float) -> None:
        self._url = url
        self._runtime = runtime
        self._look_seconds = look_seconds
        self._patience_seconds = patience_seconds
        self._lock = runtime.new_lock()
        self._coalescer = Coalescer(runtime.new_lock())
        self._pid: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._topics: set[str] = set()
        self._is_something_to_do = asyncio.Event()
        self._is_tried = asyncio.Event()
        self._is_closing = False
        self._is_silent = False
        self._waiting: Deadline | None = None
        self._task: asyncio.Task[None] | None = None
        self._subscription: Subscription | None = None
        self._last_error: str | None = None

    @abstractmethod
    async def _connect(self, on_topics: OnTopics) -> Subscription:
        """Make a connection, not yet subscribed."""

    async def open(self) -> None:
        """Connect; returns after the first attempt, whether it succeeded or not."""
        if self._pid == process_id():
            return
        self._pid = process_id()
        self._loop = asyncio.get_running_loop()
        # New locks: a forked child may inherit a lock that is held for ever.
        self._lock = self._runtime.new_lock()
        self._topics = set()
        self._is_something_to_do, self._is_tried = asyncio.Event(), asyncio.Event()
        self._is_closing = self._is_silent = False
        self._last_error = None
        self._coalescer.start(self._loop, self._runtime.new_lock())
        self._task = self._runtime.spawn(self._stay_connected(), f"endwell-doorbell-{self.kind}")
        await self._runtime.wait(self._is_tried, OPEN_SECONDS)
        if self._subscription is None and self._last_error is None:
            self._on_error(ConnectionError(NOT_YET))  # until it does, rings of others are missed

    async def close(self) -> None:
        """Send what was rung, then disconnect."""
        is_ours, self._pid = self._pid == process_id(), None
        if not is_ours:  # never opened, or a forked child that holds its parent's bell
            return
        self._coalescer.stop()
        self._is_closing = True
        self._is_something_to_do.set()
        task, self._task = self._task, None
        if task is not None:
            await asyncio.wait([task], timeout=FLUSH_SECONDS if self._subscription is not None else 0)
            task.cancel()
            await asyncio.wait([task])

    def ring(self, topics: Collection[str]) -> None:
        # Before any lock: in a forked child a lock may be held by a thread that does not exist there.
        if self._pid != process_id() or self._loop is None or not topics:
            return
        self._coalescer.add(topics)
        self._queue_topics(topics)
        if asyncio._get_running_loop() is self._loop:  # which need not be woken, then
            self._is_something_to_do.set()
            return
        with suppress(RuntimeError):  # the loop closed without closing the bell
            self._loop.call_soon_threadsafe(self._is_something_to_do.set)

    def subscribe(self, callback: OnRing) -> Unsubscribe:
        return self._coalescer.subscribe(callback)

    def health(self) -> BellHealth:
        subscription = self._subscription if self._pid == process_id() else None
        is_connected = subscription is not None and not subscription.lost.is_set() and not self._is_silent
        return BellHealth(kind=self.kind, connected=is_connected, last_error=self._last_error)

    def _queue_topics(self, topics: Collection[str]) -> None:
        with self._lock:
            self._topics.update(topics)
            if len(self._topics) > MOST_TOPICS:
                self._topics = {EVERYTHING}

    async def _stay_connected(self) -> None:
        """Use one connection after another, until the bell closes."""
        backoff = Backoff(
            self._runtime, first_seconds=FIRST_PAUSE_SECONDS, longest_seconds=LONGEST_PAUSE_SECONDS
        )
        while True:
            subscription: Subscription | None = None
            try:
                async with self._runtime.timeout(CONNECT_SECONDS):
                    subscription = await self._connect(self._coalescer.add)
                    await subscription.listen()
                self._subscription = subscription
                self._on_connected()
                backoff.reset()
                await self._serve(subscription)
                return
            except Exception as error:
                self._on_error(error)
            finally:
                self._is_tried.set()
                self._subscription = None
                await self._end(subscription)
            await backoff.pause()

    async def _end(self, subscription: Subscription | None) -> None:
        if subscription is None:
            return
        try:
            async with self._runtime.timeout(END_SECONDS):
                await subscription.end()
        except Exception as error:
            log.debug("a lost doorbell connection could not be closed: %r", error)

    async def _serve(self, subscription: Subscription) -> None:
        """Send one request at a time; topics rung in the meantime go into the next request."""
        watching = self._runtime.spawn(self._watch(subscription), f"endwell-doorbell-{self.kind}-watch")
        pinged_at = self._runtime.clock.monotonic()
        try:
            while not subscription.lost.is_set():
                self._is_something_to_do.clear()
                has_sent = await self._send_topics(subscription)
                if self._is_closing and not has_sent:
                    return
                left = pinged_at + self._look_seconds - self._runtime.clock.monotonic()
                if left <= 0 or not (has_sent or await self._runtime.wait(self._is_something_to_do, left)):
                    await self._wait_for_answer(subscription.ping())
                    pinged_at = self._runtime.clock.monotonic()
                elif has_sent:
                    await self._runtime.sleep(BREATH_SECONDS)
        finally:
            watching.cancel()
        raise ConnectionError(subscription.why)

    async def _watch(self, subscription: Subscription) -> None:
        await subscription.lost.wait()
        self._is_something_to_do.set()
        if self._waiting is not None:
            self._waiting.reschedule(0)  # no answer will come

    async def _send_topics(self, subscription: Subscription) -> bool:
        with self._lock:
            topics, self._topics = self._topics, set()
        if not topics:
            return False
        try:
            await self._wait_for_answer(subscription.send(topics))
        except BaseException:
            self._queue_topics(topics)  # for the next connection
            raise
        return True

    async def _wait_for_answer(self, request: Coroutine[Any, Any, None]) -> None:
        """Report a late answer; give the connection up when it is much too late."""
        timer = self._runtime.schedule(self._patience_seconds, self._on_silence)
        try:
            async with self._runtime.timeout(ANSWER_SECONDS) as self._waiting:
                await request
        except TimeoutError:
            raise ConnectionError(NO_ANSWER) from None
        finally:
            timer.cancel()
            self._waiting = None
            was_silent, self._is_silent = self._is_silent, False
        if was_silent:
            self._last_error = None
            self._coalescer.add({EVERYTHING})

    def _on_connected(self) -> None:
        self._is_tried.set()
        if self._last_error is not None:
            log.info("the doorbell at %s is back", mask_url(self._url))
            self._last_error = None
            self._coalescer.add({EVERYTHING})

    def _on_silence(self) -> None:
        self._is_silent = True
        self._on_error(ConnectionError(NO_ANSWER))

    def _on_error(self, error: Exception) -> None:
        if self._last_error in (None, NOT_YET):  # warn once, with the real reason
            log.warning("no doorbell at %s; polling still finds the work: %s", mask_url(self._url), error)
            self._coalescer.add({EVERYTHING})
        self._last_error = str(error) or type(error).__name__
