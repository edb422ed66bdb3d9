"""Export: the whole record as JSON lines, from which an import makes another store.

Safe while the store is in use: the export is a snapshot. Leases, sessions and the relay's cursor are not
part of the record.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from typing import Final

from endwell.operate.transfer.export_format import (
    FORMAT,
    VERSION,
    End,
    ExportLine,
    Head,
    card_line,
    encode_line,
    event_line,
)
from endwell.store.contract import Snapshot, Store

PAGE: Final = 500
Write = Callable[[bytes], object]


async def export(store: Store, namespaces: Iterable[str], write: Write) -> End:
    """Write everything; return the counts of the last line."""
    spaces = list(namespaces)
    end = End(cards=0, events=0, messages=0)
    write(encode_line(ExportLine(head=Head(format=FORMAT, version=VERSION, namespaces=spaces))))
    async with store.snapshot() as record:
        for namespace in spaces:
            await _Export(record, namespace, write, end).run()
    write(encode_line(ExportLine(end=end)))
    return end


class _Export:
    """The export of one namespace; counts its lines in `end`."""

    def __init__(self, record: Snapshot, namespace: str, write: Write, end: End) -> None:
        self._record = record
        self._namespace = namespace
        self._write = write
        self._end = end
        self._tasks: dict[str, None] = {}

    async def run(self) -> None:
        """Cards come before the events that name them, so the events wait in a temporary file."""
        with tempfile.TemporaryFile() as spool:
            await self._write_events(spool.write)
            for task_id in self._tasks:
                await self._write_cards(task_id)
            spool.seek(0)
            for line in spool:
                self._write(line)
        await self._write_messages()

    async def _write_events(self, write: Write) -> None:
        cursor = ""
        while page := await self._record.events_after(self._namespace, cursor, PAGE):
            for logged in page:
                write(encode_line(event_line(logged.event)))
                self._tasks[logged.event.task_id] = None
            self._end.events += len(page)
            cursor = page[-1].cursor

    async def _write_cards(self, task_id: str) -> None:
        for card in await self._record.cards_between(self._namespace, f"{task_id}.", f"{task_id}/"):
            self._write(encode_line(card_line(card)))
            self._end.cards += 1

    async def _write_messages(self) -> None:
        after = ""
        while page := await self._record.messages_page(self._namespace, after, PAGE):
            for message in page:
                if message.task_id in self._tasks:
                    self._write(encode_line(ExportLine(message=message)))
                    self._end.messages += 1
            after = page[-1].id
