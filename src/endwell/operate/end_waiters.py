"""Waits for the ends of tasks: one question for all waiters of this process, at each ring."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from endwell.doorbell.contract import Doorbell, is_rung
from endwell.errors import StoreError
from endwell.model.task import Task
from endwell.runtime.base import Runtime
from endwell.store.contract import Store

EndedTask = tuple[Task, bytes | None]
"""A task that has ended, and its stored deliverable if that was read with it."""


class EndWaiters:
    """Everything in this process that waits for a task's end."""

    def __init__(
        self, store: Store, bell: Doorbell, runtime: Runtime, *, namespace: str, poll_seconds: float
    ) -> None:
        self._store = store
        self._bell = bell
        self._runtime = runtime
        self._namespace = namespace
        self._poll_seconds = poll_seconds
        self._waiting: dict[str, list[asyncio.Future[EndedTask]]] = {}
        self._rung = asyncio.Event()
        self._looker: asyncio.Task[None] | None = None
        self.ends_rung: int | None = None
        """How often an end was rung; None before the first wait."""

    def has_no_end_since(self, count: int | None) -> bool:
        """Whether no end was rung since that count. Polling makes up for a lost ring."""
        return count is not None and count == self.ends_rung and self._bell.health().connected

    def _on_ring(self, topics: frozenset[str]) -> None:
        if is_rung(f"ended:{self._namespace}", topics):
            self.ends_rung = (self.ends_rung or 0) + 1
            self._rung.set()

    @contextmanager
    def listen_for_end(self, task_id: str) -> Iterator[asyncio.Future[EndedTask]]:
        """A future of the ended task. It listens from now on, so a later look at the store misses no end."""
        future: asyncio.Future[EndedTask] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(task_id, []).append(future)
        if self.ends_rung is None:
            self.ends_rung = 0
            self._bell.subscribe(self._on_ring)  # for as long as the bell exists
        if self._looker is None or self._looker.done():
            self._rung.clear()
            self._looker = self._runtime.spawn(self._look_repeatedly(), "endwell-waiters")
        try:
            yield future
        finally:
            self._stop_waiting(task_id, future)

    def _stop_waiting(self, task_id: str, future: asyncio.Future[EndedTask]) -> None:
        waiting = self._waiting.get(task_id, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self._waiting.pop(task_id, None)
            self._rung.set()  # the looker ends if no waiter is left

    async def _look_repeatedly(self) -> None:
        try:
            while self._waiting:
                await self._runtime.wait(self._rung, self._poll_seconds)
                self._rung.clear()
                if self._waiting:
                    await self._look_once()
        except Exception as error:  # the store was closed under the waiters: none may wait for ever
            for future in [future for waiting in self._waiting.values() for future in waiting]:
                if not future.done():
                    future.set_exception(error)

    async def _look_once(self) -> None:
        try:
            found = await self._store.results_by_ids(self._namespace, list(self._waiting))
        except StoreError:
            await self._runtime.sleep(self._poll_seconds)
            return
        for task, content in found:
            for future in self._waiting.get(task.id, ()) if task.is_ended else ():
                if not future.done():
                    future.set_result((task, content))
