"""The lines of an export, one JSON document each: a head, then cards, events and messages, then an end.

Data of events and content of cards stand there byte for byte as they are stored, because their hashes are
taken over those bytes. A reformatted file does not pass the import's check.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime
from typing import IO, Any, Final

import msgspec

from endwell.errors import StoreError
from endwell.model.card import Card, CardKind
from endwell.model.facts import StepRecorded, outside_names
from endwell.model.message import Message
from endwell.model.moments import SECOND, moment
from endwell.store.log import Event

FORMAT: Final = "endwell-export"
VERSION: Final = 1
LONGEST: Final = 64 * 1024 * 1024
"""Bytes of one line: content is at most a megabyte, but a turn may wait for thousands of answers."""


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
    """An event; its data is JSON as it is stored. `names` are its names outside; an import ignores them."""

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
    """The last line: the counts of the others. Without it the file was cut off."""

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


EventRun = tuple[str, str, str, str]
"""The events of one command on one task: namespace, task, command and time."""
RUNS_REMEMBERED: Final = 10_000
"""Tasks whose last run is kept in memory; parts of a run are as far apart as transactions overlap."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ExportLine)


def encode_line(line: ExportLine) -> bytes:
    """The line as it is written, with its line end."""
    return _encoder.encode(line) + b"\n"


def split_lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file; of a line that is too long only a beginning that is too long as well."""
    while text := file.readline(LONGEST + 1):
        yield text


def decode_line(text: bytes) -> ExportLine:
    """The line that was written so; msgspec's own errors if it is none."""
    return _decoder.decode(text)


def run_of(line: EventLine) -> EventRun:
    """The run that an event belongs to."""
    return line.namespace, line.task_id, line.command_id, line.at


class PartedRuns:
    """Finds runs whose events are not next to each other, as earlier releases could write on PostgreSQL.

    Takes the events in their order; `last` has the last version of each such run.
    """

    def __init__(self) -> None:
        self.last: dict[EventRun, int] = {}
        self._runs: OrderedDict[tuple[str, str], EventRun] = OrderedDict()
        self._before: EventRun | None = None

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
    about: dict[str, Any] = {"event_id": event.event_id, "at": at, "names": _outside_names(event)}
    return ExportLine(event=EventLine(**values, **about, data=data, hash=sealed))


def _outside_names(event: Event) -> tuple[str, ...]:
    if event.type != StepRecorded.type:
        return ()
    try:
        recorded: Any = event.fact
        return outside_names(recorded.result_type)
    except StoreError:  # an export takes what there is; the import reports what is wrong
        return ()


def card_of(line: CardLine) -> Card:
    return Card(
        line.namespace,
        line.id,
        line.task_id,
        line.kind,
        bytes(line.content),
        line.hash,
        _parse_moment(line.created_at),
    )


def event_of(line: EventLine) -> Event:
    values = {name: getattr(line, name) for name in _PLAIN}
    return Event(**values, at=_parse_moment(line.at), data=bytes(line.data), hash=bytes.fromhex(line.hash))


def _parse_moment(text: str) -> int:
    since = datetime.fromisoformat(text) - _BEGINNING
    return (since.days * 86400 + since.seconds) * SECOND + since.microseconds


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
