"""The worker's end: reads in batches on a connection that blocks, acknowledges in batches on another.

An entry is acknowledged after the store has the ending of its turn, or has said that there is nothing to do.
Until then it is pending, and kept fresh by claiming it to ourselves, which adds nothing to any stream.
Whatever cannot be read becomes a dead letter in the same step that acknowledges it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from endwell.model.moments import moment
from endwell.redis_client import Connect, Refusal, Unreachable, Word
from endwell.runtime.backoff import Backoff
from endwell.runtime.base import Runtime
from endwell.runtime.recent import Recent
from endwell.settings import masked
from endwell.streams.contract import Delivery
from endwell.streams.entries import Malformed, malformed_letter, read_task
from endwell.streams.groups import make_groups
from endwell.streams.protocol import WORKERS_GROUP, Names

READ_LIMIT = 128
AHEAD_SECONDS = 0.1
"""So much work may wait in a worker for a slot; with slow turns that is nothing."""
SEND_LIMIT = 1000
ANSWER_SECONDS = 5.0
"""A server that says nothing for so long after a read's own time is gone."""
FLUSH_SECONDS = 2.0

log = logging.getLogger(__name__)


class StreamIntake:
    """`block_seconds`: how long one read waits at the server. `quiet_seconds`: for how long ready work may
    fail to come before a worker looks for it itself.
    """

    def __init__(
        self,
        url: str,
        names: Names,
        consumer: str,
        runtime: Runtime,
        *,
        connect: Connect,
        block_seconds: float,
        agents: Mapping[str, object],
        heartbeat_seconds: float,
        quiet_seconds: float,
    ) -> None:
        self._url = url
        self._names = names
        self.consumer = consumer
        self._runtime = runtime
        self._agents = agents
        self._heartbeat_seconds = heartbeat_seconds
        self._quiet_seconds = quiet_seconds
        self._connect = connect
        self._block_seconds = block_seconds
        self._reading = connect(blocking=True)
        self._sending = connect()
        self._loops: list[asyncio.Task[None]] = []
        self._arrived: deque[Delivery] = deque()
        self._held: dict[str, Delivery] = {}
        self._recent = Recent(runtime.clock)
        self._acks: list[str] = []
        self._others: list[list[list[Word]]] = []
        self._to_send = asyncio.Event()
        self._has_room = asyncio.Event()
        self._stopping = False
        self._is_connected = False
        self._expected_since: float | None = None
        self._wake: Callable[[], None] = lambda: None
        self._room: Callable[[], int] = lambda: 0
        self.failures = 0

    async def start(self, *, room: Callable[[], int], wake: Callable[[], None]) -> None:
        self._room, self._wake = room, wake
        try:
            await make_groups(self._sending, self._names)
            self._is_connected = True
        except (Unreachable, Refusal) as error:
            self._note(error)
        loops = {"read": self._read_on(), "send": self._send_on(), "refresh": self._refresh_on()}
        self._loops = [self._runtime.spawn(run, f"endwell-stream-{name}") for name, run in loops.items()]

    async def stop(self) -> None:
        self._stopping = True
        if self._loops:
            self._loops[0].cancel()
            await asyncio.wait([self._loops[0]])
        self._pass_on(tuple(self._arrived))
        self._arrived.clear()

    async def close(self) -> None:
        self._stopping = True
        for loop in self._loops:
            loop.cancel()
        if self._loops:
            await asyncio.wait(self._loops)
        try:
            async with self._runtime.timeout(FLUSH_SECONDS):
                while self._acks or self._others:
                    await self._send_once()
        except (Unreachable, Refusal, TimeoutError) as error:
            log.info("not acknowledged, and therefore looked at again by others: %s", error)
        for connection in (self._reading, self._sending):
            await connection.close()

    @property
    def is_up(self) -> bool:
        if not self._is_connected or self._expected_since is None:
            return self._is_connected
        return self._runtime.clock.monotonic() - self._expected_since < self._quiet_seconds

    @property
    def waiting(self) -> int:
        return len(self._arrived)

    def expect(self, is_work: bool) -> None:
        if not is_work:
            self._expected_since = None
        elif self._expected_since is None:
            self._expected_since = self._runtime.clock.monotonic()

    def forget(self) -> None:
        self._held.clear()

    def arrived(self, limit: int) -> list[Delivery]:
        return [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        self._arrived.extendleft(reversed(deliveries))

    def began(self, attempt_id: str, delivery: Delivery) -> None:
        self._held[attempt_id] = delivery

    def done(self, attempts: Collection[str]) -> None:
        found = [self._held.pop(attempt, None) for attempt in attempts]
        self._recent.note(len(found))
        self.drop([delivery for delivery in found if delivery is not None])
        self._has_room.set()

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            self._acks += [delivery.message_id for delivery in deliveries]
            self._to_send.set()

    def nudge(self) -> None:
        """There may be room again."""
        self._has_room.set()

    async def _read_on(self) -> None:
        pace = Backoff(self._runtime)
        while not self._stopping:
            ahead = self._recent.within(AHEAD_SECONDS)
            count = min(self._room() + ahead - len(self._arrived), READ_LIMIT)
            if count <= 0:
                self._expected_since = None  # what does not come is not missed
                self._has_room.clear()
                await self._runtime.wait(self._has_room, self._block_seconds)
                await self._runtime.sleep(0)  # let others end too: one read for all of them
                continue
            try:
                await self._read_once(count)
                pace.reset()
            except (Unreachable, Refusal) as error:
                await self._recover(error, pace)

    async def _read_once(self, count: int) -> None:
        words = ("XREADGROUP", "GROUP", WORKERS_GROUP, self.consumer, "COUNT", count)
        wait = ("BLOCK", int(self._block_seconds * 1000), "STREAMS", self._names.task, ">")
        try:
            async with self._runtime.timeout(self._block_seconds + ANSWER_SECONDS):
                found = await self._reading.ask(*words, *wait)
        except TimeoutError:
            await self._reading.close()
            self._reading = self._connect(blocking=True)
            raise Unreachable("the server does not answer") from None
        if not self._is_connected:
            log.info("the task stream at %s is back", masked(self._url))
            self._is_connected = True
        for _, entries in found or ():
            self._take(entries)

    def _take(self, entries: Sequence[tuple[bytes, Sequence[bytes] | None]]) -> None:
        self._expected_since = None
        for message_id, raw in entries:
            delivery = read_task(message_id.decode(), raw)
            if isinstance(delivery, Malformed):
                self._bury(delivery)
            elif delivery.agent not in self._agents:
                self._pass_on((delivery,))
            else:
                self._arrived.append(delivery)
        self._wake()

    async def _recover(self, error: Exception, pace: Backoff) -> None:
        """A server that forgot its groups gets them again; one that is away is tried ever more rarely."""
        self._note(error)
        if isinstance(error, Refusal):
            try:
                await make_groups(self._sending, self._names)
            except (Unreachable, Refusal) as another:
                self._note(another)
        await pace.pause()

    def _note(self, error: Exception) -> None:
        self.failures += 1
        if isinstance(error, Unreachable):
            if self._is_connected:
                log.warning(
                    "no task stream at %s; the worker asks the store itself: %s", masked(self._url), error
                )
            self._is_connected = False
            self._wake()
        else:
            log.warning("the task stream at %s: %s", masked(self._url), error)

    def _bury(self, bad: Malformed) -> None:
        """To the dead letters and acknowledged in one step: neither lost nor read for ever."""
        log.error("entry %s cannot be read (%s): %s", bad.message_id, bad.reason, bad.problem)
        failed_at = moment(self._runtime.clock.now_us())
        letter: list[Word] = ["XADD", self._names.dlq, "*", *malformed_letter(bad, failed_at)]
        self._others.append([letter, *self._acknowledging([bad.message_id])])
        self._to_send.set()

    def _pass_on(self, deliveries: Sequence[Delivery]) -> None:
        """Not for us: the orchestrator puts it on the stream again."""
        for each in deliveries:
            said: dict[str, Word] = {
                "task_id": each.task_id,
                "status": "passed",
                "turn": each.turn_id,
                "epoch": each.epoch,
                "worker_id": self.consumer,
                "message_id": each.message_id,
                "tool_name": each.agent,
            }
            passing: list[Word] = ["XADD", self._names.result, "*"]
            passing += [part for pair in said.items() for part in pair]
            # It stays on the stream until the orchestrator has looked at it.
            self._others.append([passing, self._acknowledging([each.message_id])[0]])
            self._to_send.set()

    def _acknowledging(self, ids: Sequence[str]) -> list[list[Word]]:
        return [
            ["XACK", self._names.task, WORKERS_GROUP, *ids],
            ["XDEL", self._names.task, *ids],
        ]

    async def _send_on(self) -> None:
        pace = Backoff(self._runtime)
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            try:
                while self._acks or self._others:
                    await self._send_once()
                pace.reset()
            except (Unreachable, Refusal) as error:
                self._to_send.set()
                await self._recover(error, pace)

    async def _send_once(self) -> None:
        ids, others = self._acks[:SEND_LIMIT], self._others[:SEND_LIMIT]
        if ids:
            await self._sending.ask_all(self._acknowledging(ids))
            del self._acks[: len(ids)]
        if others:
            await self._sending.ask_all([words for each in others for words in each], atomic=True)
            del self._others[: len(others)]

    async def _refresh_on(self) -> None:
        while True:
            await self._runtime.sleep(self._heartbeat_seconds)
            try:
                await self.refresh()
            except (Unreachable, Refusal) as error:
                self._note(error)

    async def refresh(self) -> None:
        """Say that what we hold is still in work. Adds no entry, and counts as no delivery."""
        ids = [delivery.message_id for delivery in self._held.values()]
        while ids:
            some, ids = ids[:SEND_LIMIT], ids[SEND_LIMIT:]
            await self._sending.ask(
                "XCLAIM", self._names.task, WORKERS_GROUP, self.consumer, 0, *some, "JUSTID"
            )
