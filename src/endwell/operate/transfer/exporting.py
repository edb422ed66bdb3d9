"""Export: the whole record as JSON lines, from which another store can be made that goes on from there.

Safe on a store at work: it shows the store as it was at one moment. Leases, sessions
and the relay's cursor are not part of the record.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from typing import IO, Final

from endwell.operate.transfer import export_format
from endwell.store.contract import Snapshot, Store

PAGE: Final = 500
Write = Callable[[bytes], object]


async def export(store: Store, namespaces: Iterable[str], write: Write) -> export_format.End:
    """Write everything; what the last line says is returned as well."""
    spaces = list(namespaces)
    end = export_format.End(cards=0, events=0, messages=0)
    head = export_format.Head(format=export_format.FORMAT, version=export_format.VERSION, namespaces=spaces)
    write(export_format.packed(export_format.ExportLine(head=head)))
    async with store.snapshot() as record:
        for namespace in spaces:
            await _namespace(record, namespace, write, end)
    write(export_format.packed(export_format.ExportLine(end=end)))
    return end


async def _namespace(record: Snapshot, namespace: str, write: Write, end: export_format.End) -> None:
    with tempfile.TemporaryFile() as spool:
        tasks = await _spooled(record, namespace, spool, end)
        for task_id in tasks:
            await _cards(record, namespace, task_id, write, end)
        spool.seek(0)
        for line in spool:
            write(line)
    await _messages(record, namespace, set(tasks), write, end)


async def _spooled(record: Snapshot, namespace: str, spool: IO[bytes], end: export_format.End) -> list[str]:
    """Events come after the content that they name, so they wait in a file; which tasks they are about."""
    cursor, tasks = "", dict[str, None]()
    while page := await record.events_after(namespace, cursor, PAGE):
        for logged in page:
            spool.write(export_format.packed(export_format.event_line(logged.event)))
            tasks[logged.event.task_id] = None
        end.events += len(page)
        cursor = page[-1].cursor
        if len(page) < PAGE:
            break
    return list(tasks)


async def _cards(
    record: Snapshot, namespace: str, task_id: str, write: Write, end: export_format.End
) -> None:
    for card in await record.cards_between(namespace, f"{task_id}.", f"{task_id}/"):
        write(export_format.packed(export_format.card_line(card)))
        end.cards += 1


async def _messages(
    record: Snapshot, namespace: str, tasks: set[str], write: Write, end: export_format.End
) -> None:
    after = ""
    while page := await record.messages_page(namespace, after, PAGE):
        for message in page:
            if message.task_id in tasks:
                write(export_format.packed(export_format.ExportLine(message=message)))
                end.messages += 1
        after = page[-1].id
