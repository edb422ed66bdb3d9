"""Results on their stream: how every task ended, after the commit, for consumers beside the orchestrator.

The log is followed from a cursor that lies beside the stream. One step on the server adds the entries and
moves the cursor, if it still is where this orchestrator read it: neither a crash nor a supervisor that was
frozen while another one published makes a result get lost or come twice. A server that lost the cursor
carries the results from then on; the store has all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from endwell.errors import BadInput
from endwell.model import facts as f
from endwell.redis_client import Word
from endwell.store.contract import Store
from endwell.store.log import Event, position_of
from endwell.store.log_pages import next_page
from endwell.streams.commands import StreamOrchestrator
from endwell.streams.entries import result_entry
from endwell.streams.scripts import publish_results

log = logging.getLogger(__name__)

PAGE: Final = 500
STATUSES: Final[dict[type[f.Fact], str]] = {
    f.SucceededEnding: "succeeded",
    f.FailedEnding: "failed",
    f.TimedOutEnding: "timeout",
    f.CancelledEnding: "cancelled",
}


class StreamResults:
    """`run_once()` publishes what has ended since the last call."""

    def __init__(self, store: Store, stream: StreamOrchestrator, *, namespace: str, kept: int) -> None:
        self._store = store
        self._stream = stream
        self._namespace = namespace
        self._kept = kept
        self._is_cursor_checked = False

    async def run_once(self) -> int:
        """How many results were published."""
        if not self._kept:
            return 0
        line, names = self._stream.connection, self._stream.names
        cursor, count = await self.find_cursor(), 0
        while page := await next_page(self._store, self._namespace, cursor, PAGE):
            entries = await self._entries([logged.event for logged in page])
            after, cursor = cursor, page[-1].cursor
            if not await publish_results(line, names, entries, after=after, cursor=cursor):
                break  # another orchestrator has published them
            count += len(entries)
        return count

    async def find_cursor(self) -> str:
        """The place in the log up to which results were published: its end, on a server that knows none."""
        if not self._kept:
            return ""
        connection, key = self._stream.connection, self._stream.names.results_cursor
        known = await connection.ask("GET", key)
        if known is None or not _is_cursor(known) or await self._is_from_before_a_restore(known):
            is_new = ("NX",) if known is None else ()
            await connection.ask("SET", key, await self._store.log_end(), *is_new)
            known = await connection.ask("GET", key)
        self._is_cursor_checked = True
        return known.decode() if known is not None else ""

    async def _is_from_before_a_restore(self, known: bytes) -> bool:
        """Whether the store was restored from an older backup: its log ends before the cursor. Asked once."""
        if self._is_cursor_checked or position_of(known.decode()) <= await self._store.last_position():
            return False
        names = self._stream.names
        log.warning("the store was restored from a backup: %s continues at the end of its log", names.result)
        await self._stream.connection.ask("DEL", names.letters_cursor)  # compare all dead letters again
        return True

    async def _entries(self, events: Sequence[Event]) -> list[Sequence[Word]]:
        ended = {event.task_id: event for event in events if type(event.fact) in STATUSES}
        if not ended:
            return []
        turns = {event.task_id: event.fact for event in events if isinstance(event.fact, f.TurnEnded)}
        entries: list[Sequence[Word]] = []
        for task, output in await self._store.results_by_ids(self._namespace, list(ended)):
            event, turn = ended[task.id], turns.get(task.id)
            status = STATUSES[type(event.fact)]
            if output is None and task.deliverable_card is not None:
                output = (await self._store.card(self._namespace, task.deliverable_card)).content
            said: dict[str, bytes | str | int] = {
                "task_id": task.id,
                "status": status,
                "turn": turn.turn_id if turn is not None else "",
                "epoch": turn.epoch if turn is not None else task.epoch,
                "worker_id": event.actor,
                "output": (output or b"") if status == "succeeded" else b"",
                "error": task.error or "",
                "tool_name": task.agent,
                "event_id": event.event_id,
            }
            entries.append(result_entry(said))
        return entries


def _is_cursor(known: bytes) -> bool:
    """Whether it can be read: any client may have written it."""
    try:
        position_of(known.decode())
    except (BadInput, UnicodeDecodeError):
        return False
    return True
