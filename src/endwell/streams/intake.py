"""The worker's end: reads offers in batches on one client, and acknowledges them in batches on another.

An entry is acknowledged when the store has the ending of its turn, or has said that there is nothing to do.
Until then it is pending, and its heartbeats keep other consumers from taking it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Container, Sequence

from endwell.model.moments import moment
from endwell.redis_client import Connect, Refusal, Unreachable, Word
from endwell.runtime.base import Runtime
from endwell.runtime.recent import Recent
from endwell.settings import Settings
from endwell.streams.consumer_group import GroupReader
from endwell.streams.entries import Delivery, Malformed, RawFields, read_task
from endwell.streams.loops import StreamLoops
from endwell.streams.protocol import Names
from endwell.streams.task_streams import TaskStreams

READ_LIMIT = 128
AHEAD_SECONDS = 0.1
"""How many seconds of work may wait in a worker for a slot; with slow turns that is none."""
SEND_LIMIT = 1000
FLUSH_SECONDS = 2.0
"""How long closing waits for the last acknowledgements to be sent."""

log = logging.getLogger(__name__)


class StreamIntake:
    """Brings offers to a worker. The store grants them; nothing starts on the word of an entry alone."""

    def __init__(
        self,
        connect: Connect,
        names: Names,
        consumer: str,
        runtime: Runtime,
        settings: Settings,
        *,
        agents: Container[str],
    ) -> None:
        self.consumer = consumer
        self._runtime = runtime
        self._agents = agents
        self._block_seconds = settings.redis.block_seconds
        self._heartbeat_seconds = settings.queue.HEARTBEAT_INTERVAL_S
        # For how long ready work may fail to come before the worker looks for it itself.
        self._quiet_seconds = settings.pmo.dispatched_retry_seconds or settings.queue.RECLAIM_INTERVAL_S
        self._redis = connect()
        self._streams = TaskStreams(self._redis, names)
        self._reader = GroupReader(connect, runtime, self._streams.tasks, consumer, self._block_seconds)
        self._loops = StreamLoops(runtime, settings.redis.url, self._set_up, lambda: self._wake())
        self._reading: asyncio.Task[None] | None = None
        self._arrived: deque[Delivery] = deque()
        self._held: dict[str, Delivery] = {}
        self._recent = Recent(runtime.clock)
        self._acknowledged: list[str] = []
        self._transactions: list[list[tuple[Word, ...]]] = []
        self._has_to_send = asyncio.Event()
        self._has_room = asyncio.Event()
        self._expected_since: float | None = None
        self._wake: Callable[[], None] = lambda: None
        self._room: Callable[[], int] = lambda: 0

    async def start(self, *, room: Callable[[], int], wake: Callable[[], None]) -> None:
        """Begin to read as many offers as there is room for; `wake` is called when some have come."""
        self._room, self._wake = room, wake
        await self._loops.try_to_set_up()
        self._reading = self._loops.start("read", self._read_when_there_is_room)
        self._loops.start("send", self._send_when_needed)
        self._loops.start("refresh", self._refresh_later)

    async def _set_up(self) -> None:
        await self._streams.create_groups()
        self._loops.on_answer()

    async def stop(self) -> None:
        """Read nothing more, and pass on what was read and not begun."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        for delivery in self._arrived:
            self._pass_on(delivery)
        self._arrived.clear()

    async def close(self) -> None:
        """Send the last acknowledgements and disconnect."""
        await self._loops.stop()
        try:
            async with self._runtime.timeout(FLUSH_SECONDS):
                await self._send_all()
        except (Unreachable, Refusal, TimeoutError) as error:
            log.info("entries were not acknowledged; the orchestrator will reclaim them: %s", error)
        await self._reader.close()
        await self._redis.close()

    @property
    def is_up(self) -> bool:
        """Whether offers come this way; while they do not, a worker asks the store itself."""
        if not self._loops.is_up or self._expected_since is None:
            return self._loops.is_up
        return self._runtime.clock.monotonic() - self._expected_since < self._quiet_seconds

    @property
    def failures(self) -> int:
        """How often the server failed."""
        return self._loops.failures

    @property
    def arrived_count(self) -> int:
        """How many deliveries have come and were not taken yet."""
        return len(self._arrived)

    def expect_work(self, is_work: bool) -> None:
        """Tell whether there is work in the store that should come soon."""
        if not is_work:
            self._expected_since = None
        elif self._expected_since is None:
            self._expected_since = self._runtime.clock.monotonic()

    def forget(self) -> None:
        """The lease is lost: acknowledge nothing that was held, so that the orchestrator reclaims it."""
        self._held.clear()

    def take_arrived(self, limit: int) -> list[Delivery]:
        """Take the deliveries that have come, oldest first."""
        return [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Return deliveries that could not be claimed just now; they come first the next time."""
        self._arrived.extendleft(reversed(deliveries))

    def hold(self, attempt_id: str, delivery: Delivery) -> None:
        """Keep an entry fresh until `release`: the store has granted its turn."""
        self._held[attempt_id] = delivery

    def release(self, attempts: Collection[str]) -> None:
        """Acknowledge the entries of attempts that have ended in the store, or that we have lost."""
        found = [self._held.pop(attempt, None) for attempt in attempts]
        self._recent.add(len(found))
        self.drop([delivery for delivery in found if delivery is not None])
        self.look_for_room()

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge deliveries for which there is nothing to do, as the store says."""
        if deliveries:
            self._acknowledged += [delivery.message_id for delivery in deliveries]
            self._has_to_send.set()

    def look_for_room(self) -> None:
        """Look again how much room there is."""
        self._has_room.set()

    async def _read_when_there_is_room(self) -> None:
        ahead = self._recent.expected_within(AHEAD_SECONDS)
        count = min(self._room() + ahead - len(self._arrived), READ_LIMIT)
        if count <= 0:
            self._expected_since = None  # without room, no work is overdue
            self._has_room.clear()
            await self._runtime.wait(self._has_room, self._block_seconds)
            await self._runtime.sleep(0)  # let more turns end: one read for all of them
            return
        entries = await self._reader.read(count)
        self._loops.on_answer()
        if entries:
            self._take(entries)

    def _take(self, entries: Sequence[tuple[str, RawFields]]) -> None:
        self._expected_since = None
        for message_id, raw in entries:
            delivery = read_task(message_id, raw)
            if isinstance(delivery, Malformed):
                self._bury_entry(delivery)
            elif delivery.agent not in self._agents:
                self._pass_on(delivery)
            else:
                self._arrived.append(delivery)
        self._wake()

    def _bury_entry(self, bad: Malformed) -> None:
        log.error("entry %s cannot be read (%s): %s", bad.message_id, bad.reason, bad.problem)
        self._send_later(self._streams.bury_commands(bad, moment(self._runtime.clock.now_us())))

    def _pass_on(self, delivery: Delivery) -> None:
        """Let the orchestrator publish the offer again, for another worker."""
        self._send_later(self._streams.pass_on_commands(delivery, self.consumer))

    def _send_later(self, transaction: list[tuple[Word, ...]]) -> None:
        self._transactions.append(transaction)
        self._has_to_send.set()

    async def _send_when_needed(self) -> None:
        await self._has_to_send.wait()
        await self._send_all()
        self._has_to_send.clear()

    async def _send_all(self) -> None:
        while self._acknowledged or self._transactions:
            ids, transactions = self._acknowledged[:SEND_LIMIT], self._transactions[:SEND_LIMIT]
            await self._streams.tasks.remove(ids)
            del self._acknowledged[: len(ids)]
            if transactions:
                await self._redis.ask_all([words for each in transactions for words in each], atomic=True)
                del self._transactions[: len(transactions)]

    async def _refresh_later(self) -> None:
        await self._runtime.sleep(self._heartbeat_seconds)
        await self.refresh()

    async def refresh(self) -> None:
        """Send a heartbeat for each entry that is held."""
        ids = [delivery.message_id for delivery in self._held.values()]
        for first in range(0, len(ids), SEND_LIMIT):
            await self._streams.tasks.claim(self.consumer, ids[first : first + SEND_LIMIT])
