"""The orchestrator's service: publishes offers, answers foreign workers, and reclaims what is left behind.

Its loops run beside the PMO's own tick. None of them runs hot: a server that fails is asked ever more rarely.
While it is away nothing is dispatched and nothing is lost.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress

from endwell.doorbell.contract import EVERYTHING, Doorbell, Unsubscribe, is_rung
from endwell.redis_client import Connect, Refusal, Unreachable
from endwell.runtime.base import Runtime
from endwell.settings import Settings, mask_url
from endwell.store.actor import Actor
from endwell.store.reclaimer import Absence
from endwell.streams.consumer_group import PAGE, GroupReader
from endwell.streams.loops import StreamLoops
from endwell.streams.orchestrator.dead_letter_publisher import DeadLetterPublisher
from endwell.streams.orchestrator.foreign import ForeignWorkers
from endwell.streams.orchestrator.publisher import OfferPublisher
from endwell.streams.orchestrator.reclaim import StreamReclaimer
from endwell.streams.orchestrator.reports import ReportHandler
from endwell.streams.orchestrator.result_publisher import ResultPublisher
from endwell.streams.protocol import PROTOCOL_VERSION, Names, consumer_name
from endwell.streams.task_streams import KEEPS_STREAMS, TaskStreams, eviction_policy

log = logging.getLogger(__name__)

LEAD_SECONDS = 12.0
"""How long after an orchestrator's death another may take to publish offers."""
LETTERS_SECONDS = 1.0
"""Shortest time between two looks for dead letters and results: one for many tasks that end."""
LEFT_REPORT_SECONDS = 30.0
"""After this long, a report that another orchestrator has read and not acknowledged is handled here."""


class StreamOrchestratorService:
    """`start()` runs its loops until `close()`; tests call the `run_once` of its parts."""

    def __init__(
        self,
        actor: Actor,
        bell: Doorbell,
        runtime: Runtime,
        settings: Settings,
        connect: Connect,
        absence: Absence | None = None,
    ) -> None:
        self._store = actor.store
        self._namespace = actor.namespace
        self._bell = bell
        self._runtime = runtime
        self._settings = settings
        self._absence = absence
        self._redis = connect()
        self._lead_seconds = LEAD_SECONDS
        again = settings.pmo.dispatched_retry_seconds or settings.queue.RECLAIM_INTERVAL_S
        queue = settings.queue
        self._upkeep_seconds = min(queue.RECLAIM_INTERVAL_S, queue.HEARTBEAT_INTERVAL_S, again / 2)
        self._silent_ms = int(2000 * queue.VISIBILITY_TIMEOUT_S)
        self._rung: set[str] = set()
        self._is_rung = asyncio.Event()
        self._has_ended, self._is_held_lost = asyncio.Event(), asyncio.Event()
        self._has_ended.set()
        self._loops = StreamLoops(runtime, settings.redis.url, self.set_up)
        self._unsubscribe: Unsubscribe | None = None
        self._is_leader = False
        self._led_at = self._kept_up_at = self._published_at = -math.inf
        self._is_warned = False
        self._make_parts(actor, connect)

    def _make_parts(self, actor: Actor, connect: Connect) -> None:
        runtime, settings, namespace = self._runtime, self._settings, actor.namespace
        self.consumer = consumer_name(actor.name, runtime.process_id())
        names = Names.for_namespace(settings.redis.prefix, namespace)
        self.streams = streams = TaskStreams(self._redis, names)
        block_seconds = settings.redis.block_seconds
        self._reader = GroupReader(connect, runtime, streams.reports, self.consumer, block_seconds)
        self.publisher = OfferPublisher(actor, self._bell, runtime, settings, streams)
        self.foreign = ForeignWorkers(actor, runtime.clock, streams, settings)
        self.reports = ReportHandler(actor, runtime, streams, self.consumer, self.publisher, self.foreign)
        seconds = settings.queue.VISIBILITY_TIMEOUT_S
        self.reclaimer = StreamReclaimer(
            actor, runtime, streams, self.consumer, visibility_seconds=seconds, absence=self._absence
        )
        self.dead_letters = DeadLetterPublisher(actor.store, streams.dead_letters, namespace=namespace)
        kept = settings.queue.results_kept
        self.results = ResultPublisher(actor.store, streams, namespace=namespace, kept=kept)

    async def start(self) -> None:
        """Create the groups and start the loops; a server that is away is tried again later."""
        await self._loops.try_to_set_up()
        self._unsubscribe = self._bell.subscribe(self._on_ring)
        self._loops.start("publish", self._publish_once)
        self._loops.start("reports", self._read_reports_once)
        self._loops.start("upkeep", self._upkeep_once)
        self._loops.start("grants", self._revoke_once)

    async def close(self) -> None:
        """Stop at any point: each step may be repeated. The lead goes to another orchestrator."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        await self._loops.stop()
        await self.reports.close()
        with suppress(Unreachable, Refusal):
            await self.streams.give_up_lead(self.consumer)
        await self._redis.close()
        await self._reader.close()

    @property
    def is_up(self) -> bool:
        """Whether the server answered the last time it was asked."""
        return self._loops.is_up

    @property
    def failures(self) -> int:
        """How often the server, or the store, failed."""
        return self._loops.failures

    async def set_up(self) -> None:
        """Create what is missing. A server without our groups has lost the entries of the streams as well."""
        if await self.streams.create_groups():
            self._publish_all_again()
        await self._publish_settings()
        await self.results.find_cursor()
        self._loops.on_answer()
        if not self._is_warned:
            self._is_warned = True
            await self._warn_of_eviction()

    def _publish_all_again(self) -> None:
        self.publisher.forget_published()
        self._rung.add(EVERYTHING)
        self._is_rung.set()

    async def _publish_settings(self) -> None:
        queue = self._settings.queue
        await self.streams.publish_settings(
            {
                "protocol": PROTOCOL_VERSION,
                "VISIBILITY_TIMEOUT_S": str(queue.VISIBILITY_TIMEOUT_S),
                "HEARTBEAT_INTERVAL_S": str(queue.HEARTBEAT_INTERVAL_S),
            }
        )

    async def _warn_of_eviction(self) -> None:
        policy = await eviction_policy(self._redis)
        if policy is not None and policy not in KEEPS_STREAMS:
            log.warning(
                "the Redis server at %s may drop streams when its memory is full (maxmemory-policy %s); "
                "nothing is lost by that, but work is delayed: set noeviction",
                mask_url(self._settings.redis.url),
                policy,
            )

    def _on_ring(self, topics: frozenset[str]) -> None:
        if is_rung(f"ended:{self._namespace}", topics):
            self._has_ended.set()
        held = f"held:{self._namespace}:"
        if EVERYTHING in topics or any(topic.startswith(held) for topic in topics):
            self._is_held_lost.set()
        if self._is_leader:
            self._rung |= topics
            self._is_rung.set()

    async def _publish_once(self) -> None:
        if not await self.is_leading():
            await self._runtime.sleep(self._lead_seconds / 3)
            return
        self._is_rung.clear()
        rung, self._rung = self._rung, set()
        next_run = await self.publisher.run_once(self._runtime.clock.monotonic(), rung)
        seconds = next_run - self._runtime.clock.monotonic()
        if seconds > 0:
            await self._runtime.wait(self._is_rung, seconds)

    async def is_leading(self) -> bool:
        """Whether this orchestrator publishes; asked of the server several times in a lead's duration."""
        now = self._runtime.clock.monotonic()
        if now - self._led_at >= self._lead_seconds / 3:
            lead = await self.streams.take_lead(self.consumer, self._lead_seconds)
            if lead == "new":
                self._publish_all_again()  # the groups may have been lost and created again
                self._kept_up_at = self._published_at = -math.inf
                self._has_ended.set()
            self._is_leader = lead != "other"
            self._led_at = now
            if not self.is_up:
                await self.set_up()
        return self._is_leader

    async def _read_reports_once(self) -> None:
        await self.reports.handle(await self._reader.read(PAGE))

    async def _revoke_once(self) -> None:
        """A turn was taken from a session: if its worker is foreign, its grant must go."""
        if await self._runtime.wait(self._is_held_lost, self._upkeep_seconds):
            self._is_held_lost.clear()
            if self._is_leader:
                await self.foreign.grants.revoke_all_lost()

    async def _upkeep_once(self) -> None:
        await self.keep_up()
        if await self._runtime.wait(self._has_ended, self._upkeep_seconds):
            await self._runtime.sleep(min(self._upkeep_seconds, LETTERS_SECONDS))

    async def keep_up(self) -> None:
        """Do everything that is due now and then, if this orchestrator leads."""
        has_ended = self._has_ended.is_set()
        self._has_ended.clear()
        if not self._is_leader:
            return
        now = self._runtime.clock.monotonic()
        if has_ended or now - self._published_at >= self._settings.queue.RECLAIM_INTERVAL_S:
            self._published_at = now
            await self.dead_letters.run_once()
            await self.results.run_once()
        if now - self._kept_up_at < self._upkeep_seconds:
            return
        self._kept_up_at = now
        await self.set_up()
        await self.reports.handle_left(int(LEFT_REPORT_SECONDS * 1000))
        await self.foreign.renew_leases()
        if self._absence is None or self._absence.is_over:
            await self.reclaimer.run_once()
        await self.publisher.republish_unclaimed()
        await self._delete_silent_consumers()
        await self.streams.trim_all(results_kept=self._settings.queue.results_kept)

    async def _delete_silent_consumers(self) -> None:
        """Delete consumers without entries that were silent for long; a worker that returns makes its own."""
        found = await self.streams.tasks.list_consumers()
        silent = [name for name, pending, idle in found if not pending and idle >= self._silent_ms]
        if not silent:
            return
        sessions = await self._store.open_sessions(self._namespace)
        live = tuple(session.name.encode() for session in sessions)
        for name in silent:
            if not name.startswith(live):
                await self.streams.tasks.delete_consumer(name)
