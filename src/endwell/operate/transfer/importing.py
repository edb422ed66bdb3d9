"""Import: an export becomes the record of an empty store.

Every line is checked before the first one is written (`import_check.py`). A bad line is reported by its
number, and nothing changes. A file whose record the store has already changes nothing either.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

import msgspec

from endwell.errors import EndwellError, Refused, StoreError
from endwell.model.commands import Adopt, MarkRestored
from endwell.operate.record.verify import verify
from endwell.operate.transfer.export_format import (
    EventRun,
    ExportLine,
    card_of,
    decode_line,
    event_of,
    run_of,
)
from endwell.operate.transfer.import_check import CheckedImport, check
from endwell.store.contract import Store

log = logging.getLogger(__name__)

BATCH: Final = 200

Lines = Callable[[], Iterable[bytes]]
"""Reads the file from its beginning; it is read twice."""


async def import_lines(store: Store, read: Lines, new_id: Callable[[], str]) -> dict[str, Any]:
    """Check everything, then write it; return the counts."""
    checked = check(read())
    amount = {"tasks": len(checked.heads), **msgspec.to_builtins(checked.end)}
    taken = [namespace for namespace in checked.namespaces if await _has_tasks(store, namespace)]
    if taken and not await _has_record(store, checked, read):
        raise Refused(
            f"namespace {taken[0]} of this store has tasks already",
            code="store_not_empty",
            hint="import into a new store: --store sqlite:///new.db",
        )
    if not taken:
        await mark_restored(store, checked.namespaces, new_id, actor="import")
        await _write(store, read, checked.runs_in_parts, new_id)
        # Again, since the clock that made these tasks may be ahead of ours.
        await mark_restored(store, checked.namespaces, new_id, actor="import")
    return {**amount, "namespaces": checked.namespaces, "already_there": bool(taken)}


async def mark_restored(
    store: Store, namespaces: Iterable[str], new_id: Callable[[], str], *, actor: str
) -> None:
    """Count effects of present tasks that have no row as unknown from now on."""
    for namespace in namespaces:
        await store.commit_one(MarkRestored(command_id=new_id(), namespace=namespace, actor=actor))


async def _has_tasks(store: Store, namespace: str) -> bool:
    return bool(await store.heads_of_tasks(namespace, "", 1) or await store.event_tasks(namespace, "", 1))


async def _has_record(store: Store, checked: CheckedImport, read: Lines) -> bool:
    """Whether the store holds exactly this record: the same tasks, events and content."""
    heads = dict(checked.heads)
    for namespace in checked.namespaces:
        after = ""
        while page := await store.heads_of_tasks(namespace, after, BATCH):
            for task_id, *head in page:
                if heads.pop((namespace, task_id), None) != tuple(head):
                    return False
            after = page[-1][0]
    if heads:
        return False
    cards = (line.card for line in map(decode_line, read()) if line.card is not None)
    for card in cards:
        known = await store.cards_by_ids(card.namespace, [card.id])
        if [one.content for one in known] != [bytes(card.content)]:
            return False
    return bool((await verify(store, checked.namespaces))["ok"])


async def _write(
    store: Store, read: Lines, parted: Mapping[EventRun, int], new_id: Callable[[], str]
) -> None:
    batch: list[Adopt] = []
    count = 0
    try:
        for command in _make_commands(read(), parted, new_id):
            batch.append(command)
            if len(batch) == BATCH:
                await _commit(store, batch)
                count, batch = count + sum(len(one.events) for one in batch), []
        await _commit(store, batch)
    except EndwellError as error:
        raise StoreError(
            f"the import stopped: {error.message}", code="import_incomplete", hint=_remains_text(count)
        ) from error
    except asyncio.CancelledError:
        log.warning("the import was interrupted: %s", _remains_text(count))
        raise


def _remains_text(count: int) -> str:
    return f"this store has the first {count} events or a few more; import the file into a new store"


async def _commit(store: Store, commands: list[Adopt]) -> None:
    for reply in await store.commit(commands):
        if reply.refusal is not None:
            raise reply.refusal


def _make_commands(
    file: Iterable[bytes], parted: Mapping[EventRun, int], new_id: Callable[[], str]
) -> Iterator[Adopt]:
    """One command for the events of one commit, in the order of the log."""
    for key, run in groupby(_join_parts(map(decode_line, file), parted), key=_group_of):
        if key is None:
            continue
        group = list(run)
        yield Adopt(
            command_id=new_id(),
            namespace=key[0],
            actor="import",
            task_id=key[1],
            events=tuple(msgspec.structs.astuple(event_of(one.event)) for one in group if one.event),
            cards=tuple(card_of(one.card) for one in group if one.card),
            messages=tuple(one.message for one in group if one.message),
        )


def _join_parts(file: Iterable[ExportLine], parted: Mapping[EventRun, int]) -> Iterator[ExportLine]:
    """Join the parts of each run at its last part.

    Events between the parts were decided before the run was committed, so none of them builds on it.
    """
    kept: dict[EventRun, list[ExportLine]] = {}
    for line in file:
        run = None if line.event is None else run_of(line.event)
        last = None if run is None else parted.get(run)
        if line.event is None or run is None or last is None:
            yield line
            continue
        kept.setdefault(run, []).append(line)
        if line.event.version == last:
            yield from kept.pop(run)


def _group_of(line: ExportLine) -> tuple[str, str, str] | None:
    if line.event is not None:
        return line.event.namespace, line.event.task_id, line.event.command_id
    about = line.card or line.message
    return None if about is None else (about.namespace, about.task_id or "", "")
