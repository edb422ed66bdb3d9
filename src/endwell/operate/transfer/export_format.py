"""The lines of an export: one JSON document each. What it is, then content, events, messages, then the end.

An event's data and a card's content stand there byte for byte as they are stored, because hashes were taken
over those bytes; whoever reformats the file breaks it, and an import says so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime
from typing import IO, Any, Final

import msgspec

from endwell.errors import StoreError
from endwell.model.card import Card, CardKind
from endwell.model.facts import StepRecorded
from endwell.model.message import Message
from endwell.model.moments import moment
from endwell.model.step_names import names_of
from endwell.runtime.clock import MICROSECONDS
from endwell.store.log import Event

FORMAT: Final = "endwell-export"
VERSION: Final = 1
LONGEST: Final = 64 * 1024 * 1024
"""Bytes of one line: content is at most a megabyte, but a turn may wait for many thousand answers."""


class Head(msgspec.Struct, kw_only=True):
    """The first line."""

    format: str
    version: int
    namespaces: list[str]


class CardLine(msgspec.Struct, kw_only=True):
    """A card; its content is JSON as it is stored."""

    namespace: str
    id: str
    task_id: str
    kind: CardKind
    content: msgspec.Raw
    hash: str
    created_at: str


class EventLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An event; its data is JSON as it is stored. `names`: how it is called outside; no import needs them."""

    event_id: str
    namespace: str
    task_id: str
    version: int
    type: str
    schema: int
    command_id: str
    causation_id: str | None
    actor: str
    at: str
    attempt_id: str | None
    epoch: int
    data: msgspec.Raw
    hash: str
    names: tuple[str, ...] = ()


class End(msgspec.Struct, kw_only=True):
    """The last line: what there was. Without it the file was cut off."""

    cards: int
    events: int
    messages: int


class ExportLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Exactly one of these."""

    head: Head | None = None
    card: CardLine | None = None
    event: EventLine | None = None
    message: Message | None = None
    end: End | None = None


Run = tuple[str, str, str, str]
"""What one command did to one task: namespace, task, command and moment of its events."""
RUNS_REMEMBERED: Final = 10_000
"""Tasks whose last run is kept in memory: parts lie as far apart as transactions overlap."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ExportLine)


def packed(line: ExportLine) -> bytes:
    """As it is written, with its line end."""
    return _encoder.encode(line) + b"\n"


def split(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file; of one that is too long only its beginning, which is too long as well."""
    while text := file.readline(LONGEST + 1):
        yield text


def read(text: bytes) -> ExportLine:
    """What a line says; msgspec's own errors when it says nothing of the kind."""
    return _decoder.decode(text)


def run_of(line: EventLine) -> Run:
    """The run that an event belongs to."""
    return line.namespace, line.task_id, line.command_id, line.at


class PartedRuns:
    """Finds runs whose events lie apart in a file, as earlier releases could write them on PostgreSQL.

    Takes the events in their order; `last` has the last version of each such run.
    """

    def __init__(self) -> None:
        self.last: dict[Run, int] = {}
        self._runs: OrderedDict[tuple[str, str], Run] = OrderedDict()
        self._before: Run | None = None

    def take(self, line: EventLine) -> None:
        """One more event."""
        run = run_of(line)
        task = run[:2]
        if self._runs.pop(task, None) == run and (run in self.last or self._before != run):
            self.last[run] = line.version
        self._runs[task] = run
        if len(self._runs) > RUNS_REMEMBERED:
            self._runs.popitem(last=False)
        self._before = run


def card_line(card: Card) -> ExportLine:
    about = {"namespace": card.namespace, "id": card.id, "task_id": card.task_id, "hash": card.hash}
    content, created_at = msgspec.Raw(card.content), moment(card.created_at)
    return ExportLine(card=CardLine(**about, kind=card.kind, content=content, created_at=created_at))


def event_line(event: Event) -> ExportLine:
    values = {name: getattr(event, name) for name in _PLAIN}
    data, sealed, at = msgspec.Raw(event.data), event.hash.hex(), moment(event.at)
    about: dict[str, Any] = {"event_id": event.event_id, "at": at, "names": _names(event)}
    return ExportLine(event=EventLine(**values, **about, data=data, hash=sealed))


def _names(event: Event) -> tuple[str, ...]:
    if event.type != StepRecorded.type:
        return ()
    try:
        recorded: Any = event.fact
        return names_of(recorded.result_type)
    except StoreError:  # a backup takes what there is; an import says what is wrong with it
        return ()


def card_of(line: CardLine) -> Card:
    return Card(
        line.namespace,
        line.id,
        line.task_id,
        line.kind,
        bytes(line.content),
        line.hash,
        _microseconds(line.created_at),
    )


def event_of(line: EventLine) -> Event:
    values = {name: getattr(line, name) for name in _PLAIN}
    return Event(**values, at=_microseconds(line.at), data=bytes(line.data), hash=bytes.fromhex(line.hash))


def _microseconds(text: str) -> int:
    since = datetime.fromisoformat(text) - _BEGINNING
    return (since.days * 86400 + since.seconds) * MICROSECONDS + since.microseconds


_BEGINNING = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_PLAIN: Final = (
    "namespace",
    "task_id",
    "version",
    "type",
    "schema",
    "command_id",
    "causation_id",
    "actor",
    "attempt_id",
    "epoch",
)
