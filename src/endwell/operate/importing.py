"""Import: an export becomes the record of an empty store.

Every line is checked before the first one is written: that it can be read, that the hash chain of each task
is whole, that its events can be folded, that the content they name is there. A bad line is named by its
number, and nothing is changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, Final

import msgspec

from endwell.errors import BadInput, Refused
from endwell.machine.evolve import evolve
from endwell.model import content
from endwell.model import facts as f
from endwell.model.commands import Adopt
from endwell.model.message import Message
from endwell.model.task import Task
from endwell.operate import lines
from endwell.store.contract import Store
from endwell.store.log import Event, hash_of

BATCH: Final = 200
_HINT: Final = "nothing was changed; export again, and do not edit or reformat the file"

Key = tuple[str, str]
Lines = Callable[[], Iterable[bytes]]
"""Reads the file from its beginning; it is read twice."""


async def import_lines(store: Store, read: Lines, new_id: Callable[[], str]) -> dict[str, Any]:
    """Check everything, then write it; how much there was."""
    checked = check(read())
    for namespace in checked.namespaces:
        await _refuse_unless_empty(store, namespace)
    batch: list[Adopt] = []
    for command in _commands(read(), new_id):
        batch.append(command)
        if len(batch) == BATCH:
            await _commit(store, batch)
            batch = []
    await _commit(store, batch)
    return {"tasks": len(checked.heads), **msgspec.to_builtins(checked.end), "namespaces": checked.namespaces}


async def _refuse_unless_empty(store: Store, namespace: str) -> None:
    if await store.heads(namespace, "", 1) or await store.event_tasks(namespace, "", 1):
        raise Refused(
            f"namespace {namespace} of this store has tasks already",
            code="store_not_empty",
            hint="import into a new store: --store sqlite:///new.db",
        )


async def _commit(store: Store, commands: list[Adopt]) -> None:
    for reply in await store.commit(commands):
        if reply.refusal is not None:
            raise reply.refusal


def _commands(file: Iterable[bytes], new_id: Callable[[], str]) -> Iterator[Adopt]:
    """Events of one commit together; the order of the log is kept."""
    for key, run in groupby(map(lines.read, file), key=_belongs_to):
        if key is None:
            continue
        group = list(run)
        yield Adopt(
            command_id=new_id(),
            namespace=key[0],
            actor="import",
            task_id=key[1],
            events=tuple(msgspec.structs.astuple(lines.event_of(one.event)) for one in group if one.event),
            cards=tuple(lines.card_of(one.card) for one in group if one.card),
            messages=tuple(one.message for one in group if one.message),
        )


def _belongs_to(line: lines.Line) -> tuple[str, str, str] | None:
    if line.event is not None:
        return line.event.namespace, line.event.task_id, line.event.command_id
    about = line.card or line.message
    return None if about is None else (about.namespace, about.task_id or "", "")


def check(file: Iterable[bytes]) -> Checked:
    """Whatever can be wrong with an export is found here; the first problem is raised with its line."""
    checked = Checked()
    for number, text in enumerate(file, 1):
        try:
            checked.take(lines.read(text))
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, KeyError) as error:
            raise _bad(number, str(error)) from error
    if not checked.is_over:
        raise _bad(checked.count + 1, "the file ends before its last line: it was cut off")
    return checked


def _bad(number: int, problem: str) -> BadInput:
    return BadInput(f"line {number}: {problem}", code="bad_line", hint=_HINT, field=f"line {number}")


class Checked:
    """What the lines so far come to. Tasks that have ended are forgotten but for their last event."""

    def __init__(self) -> None:
        self.heads: dict[Key, tuple[int, bytes]] = {}
        self._live: dict[Key, Task] = {}
        self._cards: set[Key] = set()
        self._counted = lines.End(cards=0, events=0, messages=0)
        self.namespaces: list[str] = []
        self.end = self._counted
        self.is_over = False
        self.count = 0

    def take(self, line: lines.Line) -> None:
        """One more line; ValueError says what is wrong with it."""
        self.count += 1
        if (self.count == 1) != (line.head is not None):
            raise ValueError("an export begins with a line that says so, and has only one")
        if self.is_over:
            raise ValueError("there is something after the end")
        if line.head is not None:
            self._begin(line.head)
        elif line.card is not None:
            self._card(line.card)
        elif line.event is not None:
            self._event(lines.event_of(line.event))
        elif line.message is not None:
            self._message(line.message)
        elif line.end is not None:
            self._finish(line.end)
        else:
            raise ValueError("it is neither card, event nor message")

    def _begin(self, head: lines.Head) -> None:
        if head.format != lines.FORMAT or head.version != lines.VERSION:
            raise ValueError(f"this release reads {lines.FORMAT} version {lines.VERSION}")
        self.namespaces = head.namespaces

    def _card(self, line: lines.CardLine) -> None:
        stored = bytes(line.content)
        if hashlib.sha256(stored).hexdigest() != line.hash:
            raise ValueError(f"card {line.id} is not what its hash says")
        content.decode_stored(stored)
        self._cards.add((self._known(line.namespace), line.id))
        self._counted.cards += 1

    def _event(self, event: Event) -> None:
        key = (self._known(event.namespace), event.task_id)
        version, head = self.heads.get(key, (0, b""))
        if event.version != version + 1:
            raise ValueError(f"event {event.event_id} comes after version {version}")
        if hash_of(event, head) != event.hash:
            raise ValueError(f"event {event.event_id} is not what its hash says")
        self.heads[key] = (event.version, event.hash)
        self._fold(key, event)
        self._counted.events += 1

    def _fold(self, key: Key, event: Event) -> None:
        fact = event.fact
        self._look_for_content(key, fact)
        before = self._live.pop(key, None)
        if before is None and event.version > 1:
            return  # late words on a task that has ended
        task = evolve(before, fact, event.at, namespace=event.namespace, task_id=event.task_id)
        if not task.is_ended:
            self._live[key] = task

    def _look_for_content(self, key: Key, fact: f.Fact) -> None:
        for name in ("payload_card", "deliverable_card", "card"):
            card = getattr(fact, name, None)
            if card is not None and (key[0], card) not in self._cards:
                raise ValueError(f"it names card {card}, which is not in the file before it")

    def _message(self, message: Message) -> None:
        if (self._known(message.namespace), message.task_id) not in self.heads:
            raise ValueError("it is for a task that is not in the file before it")
        self._counted.messages += 1

    def _finish(self, end: lines.End) -> None:
        if end != self._counted:
            raise ValueError(f"lines are missing: there should be {msgspec.to_builtins(end)}")
        self.is_over = True

    def _known(self, namespace: str) -> str:
        if namespace not in self.namespaces:
            raise ValueError(f"namespace {namespace} is not one of this export")
        return namespace
