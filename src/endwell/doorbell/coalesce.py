"""Many rings from many threads become one call per subscriber and turn of the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager

from endwell.doorbell.contract import EVERYTHING, OnRing, Unsubscribe, without_channel

MOST_TOPICS = 1000
"""Most topics that wait for delivery; more become `EVERYTHING`, so that a blocked loop costs no memory."""

log = logging.getLogger(__name__)


class Coalescer:
    """Gathers topics from any thread and delivers them to the subscribers on one event loop."""

    def __init__(self, lock: AbstractContextManager[bool]) -> None:
        self._lock = lock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[str] = set()
        self._is_scheduled = False
        self._subscribers: dict[object, OnRing] = {}

    def subscribe(self, callback: OnRing) -> Unsubscribe:
        """Call `callback` with the topics of each delivery; returns what ends that."""
        ticket = object()  # so that one function may subscribe twice
        with self._lock:
            self._subscribers = {**self._subscribers, ticket: callback}

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers = {t: c for t, c in self._subscribers.items() if t is not ticket}

        return unsubscribe

    def start(self, loop: asyncio.AbstractEventLoop, lock: AbstractContextManager[bool]) -> None:
        """Deliver on this loop, under a new lock: a forked child may inherit a lock that is held for ever."""
        self._lock = lock
        self._loop, self._waiting, self._is_scheduled = loop, set(), False

    def stop(self) -> None:
        """Deliver nothing more."""
        with self._lock:
            self._loop = None
            self._waiting.clear()

    def add(self, topics: Iterable[str]) -> None:
        """Take topics from any thread and schedule their delivery."""
        if not self._subscribers:
            return
        with self._lock:
            loop = self._loop
            if loop is None:
                return
            self._waiting.update(map(without_channel, topics))
            if len(self._waiting) > MOST_TOPICS:
                self._waiting = {EVERYTHING}
            if self._is_scheduled or not self._waiting:
                return
            self._is_scheduled = True
        try:
            if asyncio._get_running_loop() is loop:  # which need not be woken, then
                loop.call_soon(self._deliver)
            else:
                loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop closed without closing the bell
            self.stop()

    def _deliver(self) -> None:
        with self._lock:
            topics = frozenset(self._waiting)
            self._waiting.clear()
            self._is_scheduled = False
        if not topics:
            return
        for ticket, callback in self._subscribers.items():
            if ticket not in self._subscribers:  # an earlier callback has unsubscribed it
                continue
            try:
                callback(topics)
            except Exception as error:
                log.exception("a doorbell subscriber failed: %r", error)
