"""Handles the entries of the result stream: reports of foreign workers, and offers that were passed on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from endwell.model.moments import moment
from endwell.runtime.base import Runtime
from endwell.store.actor import Actor
from endwell.streams.entries import Delivery, Malformed, RawFields, ReportEntry, read_report
from endwell.streams.loops import FAILURES
from endwell.streams.orchestrator.foreign import ForeignWorkers
from endwell.streams.orchestrator.publisher import OfferPublisher
from endwell.streams.protocol import TASK
from endwell.streams.task_streams import TaskStreams

log = logging.getLogger(__name__)


class ReportHandler:
    """Acknowledges a report when the store has it."""

    def __init__(
        self,
        actor: Actor,
        runtime: Runtime,
        streams: TaskStreams,
        consumer: str,
        publisher: OfferPublisher,
        foreign: ForeignWorkers,
    ) -> None:
        self._store = actor.store
        self._namespace = actor.namespace
        self._runtime = runtime
        self._streams = streams
        self._consumer = consumer
        self._publisher = publisher
        self._foreign = foreign
        self._republishing: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Publish nothing more: the next orchestrator will."""
        tasks = list(self._republishing)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def handle_left(self, idle_ms: int) -> None:
        """Handle reports that another orchestrator has read and not acknowledged for so long."""
        overdue = await self._streams.reports.pending.take_overdue(self._consumer, idle_ms)
        await self.handle([(each.message_id, each.raw) for each in overdue])

    async def handle(self, entries: Sequence[tuple[str, RawFields]]) -> None:
        """Handle entries that were read."""
        read = [read_report(entry_id, raw) for entry_id, raw in entries]
        if not read:
            return
        bad = [each for each in read if isinstance(each, Malformed)]
        await self._streams.bury_entries(bad, moment(await self._store.now()))
        good = [each for each in read if isinstance(each, ReportEntry)]
        await self._streams.reports.acknowledge([each.entry_id for each in good if each.is_published])
        reports = [each for each in good if not each.is_published]
        passed = [report for report in reports if report.status == "passed"]
        for report in passed + await self._foreign.handle_reports(reports):
            await self._handle_passed(report)
        await self._streams.reports.remove([each.entry_id for each in reports])

    async def _handle_passed(self, report: ReportEntry) -> None:
        """Publish the offer again; if no worker ever served its agent, make it a dead letter."""
        entry = await self._foreign.entry_of(report)
        if entry is None:
            return
        if await self._store.agent(self._namespace, entry.agent) is None:
            await self._bury_unknown(entry)
            return
        task = self._runtime.spawn(self._republish(report), "endwell-stream-passed")
        self._republishing.add(task)
        task.add_done_callback(self._republishing.discard)
        await self._foreign.remove_served_entry(report)

    async def _republish(self, report: ReportEntry) -> None:
        """If that fails, the offer is published again when it was not claimed for a while."""
        try:
            await self._publisher.republish_passed(report.task_id, (report.turn_id, report.epoch))
        except FAILURES as error:
            log.warning("task %s, passed on by a worker, is not published yet: %s", report.task_id, error)

    async def _bury_unknown(self, entry: Delivery) -> None:
        payload = entry.payload.decode()
        bad = Malformed(
            stream=TASK,
            message_id=entry.message_id,
            reason="unknown_tool",
            problem=f"no worker has ever served the tool {entry.agent}",
            shown={"task_id": entry.task_id, "tool_name": entry.agent, "payload": payload},
        )
        await self._streams.bury_entries((bad,), moment(self._runtime.clock.now_us()))
