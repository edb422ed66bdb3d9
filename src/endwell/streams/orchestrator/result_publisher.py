"""Publishes how every task ended, after the commit, for consumers beside the orchestrator.

It follows the log from a cursor that lies beside the stream. One step on the server adds entries and moves
the cursor, if the cursor still is where this orchestrator read it: no result is lost or published twice when
an orchestrator crashes, or was frozen while another one published. A server that lost the cursor gets results
from then on; the store has all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from endwell.errors import BadInput
from endwell.model import facts as f
from endwell.model.task import Task
from endwell.redis_client import Word
from endwell.store.contract import Store
from endwell.store.log import Event, position_of
from endwell.streams.entries import result_entry
from endwell.streams.task_streams import TaskStreams

log = logging.getLogger(__name__)

PAGE: Final = 500
STATUSES: Final[dict[type[f.Fact], str]] = {
    f.SucceededEnding: "succeeded",
    f.FailedEnding: "failed",
    f.TimedOutEnding: "timeout",
    f.CancelledEnding: "cancelled",
}


class ResultPublisher:
    """Publishes what has ended since its cursor."""

    def __init__(self, store: Store, streams: TaskStreams, *, namespace: str, kept: int) -> None:
        self._store = store
        self._streams = streams
        self._namespace = namespace
        self._kept = kept
        self._is_cursor_checked = False

    async def run_once(self) -> int:
        """How many results were published."""
        if not self._kept:
            return 0
        cursor, count = await self.find_cursor(), 0
        while page := await self._store.next_page(self._namespace, cursor, PAGE):
            entries = await self._result_entries([logged.event for logged in page])
            after, cursor = cursor, page[-1].cursor
            if not await self._streams.publish_results(entries, after=after, cursor=cursor):
                break  # another orchestrator has published them
            count += len(entries)
        return count

    async def find_cursor(self) -> str:
        """The place in the log up to which results were published: its end, on a server that knows none."""
        if not self._kept:
            return ""
        known = await self._streams.results_cursor()
        if known is None or not _is_cursor(known) or await self._is_after_the_log(known):
            end = await self._store.log_end()
            await self._streams.set_results_cursor(end, only_if_missing=known is None)
            known = await self._streams.results_cursor()
        self._is_cursor_checked = True
        return known.decode() if known is not None else ""

    async def _is_after_the_log(self, known: bytes) -> bool:
        """Whether the log ends before the cursor: the store was restored from a backup. Asked once."""
        if self._is_cursor_checked or position_of(known.decode()) <= await self._store.last_position():
            return False
        stream = self._streams.names.result
        log.warning("the store was restored from a backup: %s continues at the end of its log", stream)
        await self._streams.dead_letters.compare_all_again()
        return True

    async def _result_entries(self, events: Sequence[Event]) -> list[Sequence[Word]]:
        endings = {event.task_id: event for event in events if type(event.fact) in STATUSES}
        if not endings:
            return []
        turns = {event.task_id: event.fact for event in events if isinstance(event.fact, f.TurnEnded)}
        results = await self._store.results_by_ids(self._namespace, list(endings))
        return [
            await self._result_entry(task, output, endings[task.id], turns.get(task.id))
            for task, output in results
        ]

    async def _result_entry(
        self, task: Task, output: bytes | None, ending: Event, turn: f.TurnEnded | None
    ) -> Sequence[Word]:
        status = STATUSES[type(ending.fact)]
        if output is None and task.deliverable_card is not None:
            output = (await self._store.card(self._namespace, task.deliverable_card)).content
        return result_entry(
            {
                "task_id": task.id,
                "status": status,
                "turn": turn.turn_id if turn is not None else "",
                "epoch": turn.epoch if turn is not None else task.epoch,
                "worker_id": ending.actor,
                "output": (output or b"") if status == "succeeded" else b"",
                "error": task.error or "",
                "tool_name": task.agent,
                "event_id": ending.event_id,
            }
        )


def _is_cursor(known: bytes) -> bool:
    """Whether it can be read: any client may have written it."""
    try:
        position_of(known.decode())
    except (BadInput, UnicodeDecodeError):
        return False
    return True
