"""Check an export before its first line is written.

Each line can be decoded and is not too long; `submit` would accept its names; the hash chain of each task is
whole; its events and effects can be folded; the cards are exactly those that the events name. One line is in
memory at a time, and some 200 bytes for each task, card and effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b, sha256
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from endwell.errors import BadInput, EndwellError
from endwell.machine.evolve import evolve
from endwell.machine.evolve_rows import EFFECT_FACTS
from endwell.model import content, names
from endwell.model import facts as f
from endwell.model.card import CardKind
from endwell.model.inside import family_of
from endwell.model.message import Message
from endwell.model.task import Task
from endwell.operate.record.named_cards import is_answer, namings_of
from endwell.operate.transfer.export_format import (
    FORMAT,
    LONGEST,
    VERSION,
    CardLine,
    End,
    EventLine,
    EventRun,
    ExportLine,
    Head,
    PartedRuns,
    card_of,
    decode_line,
    event_of,
)
from endwell.operate.transfer.import_waits import OpenWaits
from endwell.policy.retry import RetryPolicy, unpack_policy
from endwell.store.log import Event, hash_of

_HINT: Final = "nothing was changed; export again, and import that file without editing or reformatting it"
_WAIT_NAMES: Final = {
    "tool": names.tool_name,
    "call": names.agent_reference,
    "signal": names.signal_name,
}

_PRINTABLE: Final = (
    *("id", "key", "step", "owner", "turn_id", "attempt_id", "session_id", "parent_id", "replay_of"),
    *("tool_call_id", "message_id", "correlation_id", "card_id", "command_id", "causation_id", "effect_key"),
    *("parent_agent", "parent_call"),
)
"""Ids and names that are always printable text."""

Key = tuple[str, str]


def check(file: Iterable[bytes]) -> CheckedImport:
    """Check all lines; the first problem is raised with the number of its line."""
    checked = CheckedImport()
    for number, text in enumerate(file, 1):
        if len(text) > LONGEST:
            raise _bad_line(number, f"the line is longer than {LONGEST} bytes")
        try:
            checked.take(decode_line(text))
        except EndwellError as error:
            raise _bad_line(number, error.message) from error
        except Exception as error:  # any decoder may fail in its own way on foreign lines
            raise _bad_line(number, str(error) or type(error).__name__) from error
    if not checked.is_over:
        raise _bad_line(checked.count + 1, "the file was cut off: its last line is missing")
    for number in checked.unnamed_lines():
        raise _bad_line(number, "no event names this card")
    return checked


def _bad_line(number: int, problem: str) -> BadInput:
    problem = content.clean_text(problem, 400)
    return BadInput(f"line {number}: {problem}", code="bad_line", hint=_HINT, field=f"line {number}")


class CheckedImport:
    """The record that the lines so far add up to. Of an ended task only its last event is kept."""

    def __init__(self) -> None:
        self.heads: dict[Key, tuple[int, bytes]] = {}
        self._runs = PartedRuns()
        self._live: dict[Key, Task] = {}
        self._waits = OpenWaits()
        self._cards: dict[bytes, tuple[bytes, CardKind]] = {}
        self._not_named: dict[bytes, int] = {}
        self._effects: set[bytes] = set()
        self._keys: set[bytes] = set()
        self._holders: dict[bytes, str] = {}
        self._counted = End(cards=0, events=0, messages=0)
        self.namespaces: list[str] = []
        self.end = self._counted
        self.is_over = False
        self.count = 0

    def take(self, line: ExportLine) -> None:
        """Check one more line; ValueError says what is wrong with it."""
        self.count += 1
        if (self.count == 1) != (line.head is not None):
            raise ValueError("an export must have exactly one head, in its first line")
        if self.is_over:
            raise ValueError("a line follows the end")
        if sum(getattr(line, name) is not None for name in line.__struct_fields__) > 1:
            raise ValueError("the line is of two kinds at once")
        if line.head is not None:
            self._check_head(line.head)
        elif line.card is not None:
            self._check_card(line.card)
        elif line.event is not None:
            self._check_event(line.event)
        elif line.message is not None:
            self._check_message(line.message)
        elif line.end is not None:
            self._check_end(line.end)
        else:
            raise ValueError("the line is neither card, event nor message")

    def unnamed_lines(self) -> list[int]:
        """Numbers of the lines with cards that no event names."""
        return sorted(self._not_named.values())

    @property
    def runs_in_parts(self) -> dict[EventRun, int]:
        """Runs of events in several parts, with the version of the last event of each."""
        return self._runs.last

    def _check_head(self, head: Head) -> None:
        if head.format != FORMAT or head.version != VERSION:
            raise ValueError(f"this release reads {FORMAT} version {VERSION}")
        if len(set(head.namespaces)) != len(head.namespaces):
            raise ValueError("the head names a namespace twice")
        self.namespaces = [names.namespace_name(each) for each in head.namespaces]

    def _check_card(self, line: CardLine) -> None:
        card, digest = card_of(line), _digest_of(self._in_export(line.namespace), line.id)
        actual = sha256(card.content)
        if actual.hexdigest() != card.hash:
            raise ValueError(f"the content of card {card.id} does not match its hash")
        content.decode_stored(card.content)
        _check_columns(astuple(card)[:4])
        _check_printable(card)
        if not card.id.startswith(f"{names.idempotency_key(card.task_id)}."):
            raise ValueError(f"card {card.id} does not belong to task {card.task_id}")
        if digest in self._cards:
            raise ValueError(f"card {card.id} is in the file twice")
        self._cards[digest] = (actual.digest(), card.kind)
        if not is_answer(card.id, card.task_id, card.kind):
            self._not_named[digest] = self.count
        self._counted.cards += 1

    def _check_event(self, line: EventLine) -> None:
        event = event_of(line)
        key = (self._in_export(event.namespace), event.task_id)
        version, head = self.heads.get(key, (0, b""))
        if event.version != version + 1:
            raise ValueError(f"event {event.event_id} follows version {version} of its task")
        if hash_of(event, head) != event.hash:
            raise ValueError(f"event {event.event_id} does not match its hash")
        if line.event_id != event.event_id:
            raise ValueError(f"event {event.event_id} is called {line.event_id}")
        _check_columns(astuple(event)[:-2])
        _check_printable(event)
        self.heads[key] = (event.version, event.hash)
        self._fold(key, event)
        self._runs.take(line)
        self._counted.events += 1

    def _fold(self, key: Key, event: Event) -> None:
        fact = event.fact
        _check_printable(fact)
        self._check_cards(key, fact)
        before = self._live.pop(key, None)
        if isinstance(fact, EFFECT_FACTS):
            self._fold_effect(key[0], fact)
        if (event.version == 1) != isinstance(fact, f.TaskCreated):
            raise ValueError("the first event of a task, and no other, is task.created")
        if before is None and event.version > 1:
            return  # a late event of a task that has ended
        if isinstance(fact, f.TaskCreated):
            self._check_created(key, fact)
        if isinstance(fact, f.TaskSuspended | f.WaitsAdded):
            for wait in fact.waits:
                _check_printable(wait)
                _WAIT_NAMES.get(wait.kind, str)(wait.name)
        self._waits.take(key, before, fact)
        task = evolve(before, fact, event.at, namespace=event.namespace, task_id=event.task_id)
        _check_columns(astuple(task))
        if event.version == 1:
            _check_packed(task)
        self._check_holder(key[0], task)
        if task.is_ended:
            self._waits.forget(key)
        else:
            self._live[key] = task

    def _fold_effect(self, namespace: str, fact: Any) -> None:
        digest = _digest_of(namespace, fact.key)
        if isinstance(fact, f.EffectIntended):
            self._effects.add(digest)
        elif digest not in self._effects:
            raise ValueError(f"{fact.type} of an effect that was never intended")

    def _check_created(self, key: Key, fact: f.TaskCreated) -> None:
        """Names must be such as `submit` accepts, and a key belongs to one task."""
        names.idempotency_key(key[1])
        names.agent_name(fact.agent)
        names.channel_name(fact.channel)
        if fact.agent_key is not None:
            names.agent_key(fact.agent_key)
        if fact.key is not None:
            names.idempotency_key(fact.key)
        for digest in {_digest_of(key[0], fact.key or key[1]), _digest_of(*key)}:
            if digest in self._keys:
                raise ValueError(f"another task has the key {fact.key or key[1]}")
            self._keys.add(digest)

    def _check_holder(self, namespace: str, task: Task) -> None:
        """An agent key is held by one turn at a time."""
        if task.agent_key is None:
            return
        digest = _digest_of(namespace, f"{task.agent}/{task.agent_key}")
        holder = self._holders.get(digest)
        if task.turn_id is None or task.is_ended:
            if holder == task.id:
                del self._holders[digest]
        elif self._holders.setdefault(digest, task.id) != task.id:
            raise ValueError(f"{task.agent}/{task.agent_key} is held by task {holder}")

    def _check_cards(self, key: Key, fact: f.Fact) -> None:
        for naming in namings_of(fact, key[1]):
            digest = _digest_of(key[0], naming.card_id)
            known = self._cards.get(digest)
            is_first = self._not_named.pop(digest, None) is not None
            if known is None:
                if not naming.may_be_missing:
                    raise ValueError(f"it names card {naming.card_id}, which is not in the file before it")
                continue
            if naming.is_kept and not is_first:
                continue
            if naming.hash not in (None, known[0].hex()):
                raise ValueError(f"the content of card {naming.card_id} was changed: it names another hash")
            if known[1] not in naming.kinds:
                raise ValueError(f"the kind of card {naming.card_id} was changed: it names another kind")

    def _check_message(self, message: Message) -> None:
        if (self._in_export(message.namespace), message.task_id) not in self.heads:
            raise ValueError("the message is for a task that is not in the file before it")
        names.agent_name(message.agent)
        if message.agent_key is not None:
            names.agent_key(message.agent_key)
        if message.channel is not None:
            names.channel_name(message.channel)
        if message.card_id is not None and _digest_of(message.namespace, message.card_id) not in self._cards:
            raise ValueError(f"it names card {message.card_id}, which is not in the file before it")
        _check_columns(astuple(message))
        _check_printable(message)
        self._counted.messages += 1

    def _check_end(self, end: End) -> None:
        if end != self._counted:
            raise ValueError(f"lines are missing: the end counts {msgspec.to_builtins(end)}")
        self.is_over = True

    def _in_export(self, namespace: str) -> str:
        if namespace not in self.namespaces:
            raise ValueError(f"namespace {namespace} is not one of this export")
        return namespace


def _digest_of(namespace: str, name: str) -> bytes:
    return blake2b(f"{namespace}\n{name}".encode(), digest_size=16).digest()


def _check_columns(values: Iterable[object]) -> None:
    """Columns of both databases take whole numbers of 64 bits and text without a zero byte."""
    for value in values:
        if isinstance(value, str) and "\0" in value:
            raise ValueError("text must not contain a zero byte")
        if isinstance(value, int) and not -content.MAX_INTEGER - 1 <= value <= content.MAX_INTEGER:
            raise ValueError(f"{value} is too large a number")


def _check_packed(task: Task) -> None:
    """Packed columns must be readable, because the next command on the task reads them."""
    _check_printable(family_of(task))
    unpack_policy(task.retry_policy, RetryPolicy())


def _check_printable(named: object) -> None:
    """Ids and names must be printable, because they travel in headers."""
    for field in _PRINTABLE:
        value = getattr(named, field, None)
        if isinstance(value, str) and not value.isprintable():
            raise ValueError(f"{field} {content.safe_repr(value, 80)} is not printable text")
