"""Many rings from many threads become one call per subscriber and turn of the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager

from endwell.doorbell.contract import EVERYTHING, Heard, Unsubscribe, as_heard

MOST_TOPICS = 1000
"""Topics waiting to be handed over beyond this become `EVERYTHING`, so a blocked loop costs no memory."""

log = logging.getLogger(__name__)


class Coalescer:
    """Gathers topics from any thread and hands them to the subscribers on one loop."""

    def __init__(self, lock: AbstractContextManager[bool]) -> None:
        self._lock = lock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[str] = set()
        self._scheduled = False
        self._subscribers: dict[object, Heard] = {}

    def subscribe(self, callback: Heard) -> Unsubscribe:
        ticket = object()  # so that one function may subscribe twice
        with self._lock:
            self._subscribers = {**self._subscribers, ticket: callback}

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers = {t: c for t, c in self._subscribers.items() if t is not ticket}

        return unsubscribe

    def start(self, loop: asyncio.AbstractEventLoop, lock: AbstractContextManager[bool]) -> None:
        """Hand over on this loop from now on, under a lock that nobody holds."""
        self._lock = lock
        self._loop, self._waiting, self._scheduled = loop, set(), False

    def stop(self) -> None:
        with self._lock:
            self._loop = None
            self._waiting.clear()

    def add(self, topics: Iterable[str]) -> None:
        """Take topics in, from any thread."""
        if not self._subscribers:  # nobody to wake the loop for
            return
        with self._lock:
            self._waiting.update(map(as_heard, topics))
            if len(self._waiting) > MOST_TOPICS:
                self._waiting = {EVERYTHING}
            loop = self._loop
            if loop is None:
                self._waiting.clear()
            if loop is None or self._scheduled or not self._waiting:
                return
            self._scheduled = True
        try:
            if asyncio._get_running_loop() is loop:  # which need not be woken, then
                loop.call_soon(self._hand_over)
            else:
                loop.call_soon_threadsafe(self._hand_over)
        except RuntimeError:  # the loop closed without closing the bell
            self.stop()

    def _hand_over(self) -> None:
        with self._lock:
            topics = frozenset(self._waiting)
            self._waiting.clear()
            self._scheduled = False
        if topics:
            self._tell(topics)

    def _tell(self, topics: frozenset[str]) -> None:
        for ticket, callback in self._subscribers.items():
            # Asked again: a callback may have unsubscribed a later one.
            if ticket not in self._subscribers:
                continue
            try:
                callback(topics)
            except Exception as error:
                log.exception("a doorbell subscriber failed: %r", error)
