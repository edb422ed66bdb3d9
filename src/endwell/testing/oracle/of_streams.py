"""Invariants of the streams: at the end no entry is left, and each dead letter and result is there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from endwell.model import facts as f
from endwell.model.session import FOREIGN_HOST
from endwell.streams.protocol import DLQ, RESULT, TASK
from endwell.testing.oracle.registry import invariant
from endwell.testing.oracle.view import OracleView
from endwell.testing.redis.server import SimulatedRedis
from endwell.testing.redis.stream import write_id

_SESSION: Final = "SELECT host, lease_until FROM sessions WHERE id = ? AND ended_at IS NULL"
LAPSED: Final = ("lease_lapsed", "visibility_timeout")


@invariant("commit")
def live_workers_keep_their_turns(view: OracleView) -> Iterator[str]:
    """A turn of one of our own workers is reclaimed only when its lease has lapsed."""
    for step in view.steps:
        fact = step.fact
        if not isinstance(fact, f.TaskReclaimed) or fact.reason not in LAPSED:
            continue
        for host, lease_until in view.query_rows(_SESSION, (fact.session_id,)):
            if host != FOREIGN_HOST and lease_until > step.event.at:
                yield f"{step.event.task_id} was taken from session {fact.session_id}, which is alive"


@invariant("rest")
def nothing_is_left_on_the_streams(view: OracleView) -> Iterator[str]:
    """No entry is pending, and none lies on the streams of tasks and of results."""
    if view.streams is None:
        return
    for name in (TASK, RESULT):
        stream = view.streams.find_stream(name.encode())
        if stream is None:
            continue
        for each, fields in stream.entries.items():
            if name == RESULT and b"event_id" in fields[::2]:
                continue  # a published result, which stays for others
            yield f"{write_id(each).decode()} lies on {name}: {_first_words(fields)}"
        for group in stream.groups.values():
            for each, given in group.pending.items():
                yield f"{write_id(each).decode()} of {name} is pending with {given.consumer.decode()}"


@invariant("rest")
def results_are_published_once(view: OracleView) -> Iterator[str]:
    """The end of a task is published once, even by several orchestrators."""
    stream = view.streams.find_stream(RESULT.encode()) if view.streams is not None else None
    entries = stream.entries.values() if stream is not None else ()
    said = (dict(zip(fields[::2], fields[1::2], strict=True)) for fields in entries)
    found = Counter(each[b"event_id"].decode() for each in said if b"event_id" in each)
    yield from (f"the end {event_id} was published {n} times" for event_id, n in found.items() if n > 1)


@invariant("rest")
def dead_letters_are_on_their_stream(view: OracleView) -> Iterator[str]:
    """Each open dead letter of a task is on the stream once, and no closed one is."""
    if view.streams is None:
        return
    found = Counter(_letters_of_tasks(view.streams))
    wanted = {row[0] for row in view.query_rows("SELECT task_id FROM dead_letters WHERE status = 'open'")}
    yield from (f"the letter of {task_id} is not on the stream" for task_id in sorted(wanted - found.keys()))
    yield from (
        f"{task_id} is on the stream, and no dead letter" for task_id in sorted(found.keys() - wanted)
    )
    yield from (
        f"the letter of {task_id} is on the stream {n} times" for task_id, n in found.items() if n > 1
    )


def _letters_of_tasks(streams: SimulatedRedis) -> Iterator[str]:
    """The tasks with a dead letter; those of unreadable entries name their entry."""
    stream = streams.find_stream(DLQ.encode())
    for fields in stream.entries.values() if stream is not None else ():
        said = dict(zip(fields[::2], fields[1::2], strict=True))
        if not said[b"message_id"]:
            yield said[b"task_id"].decode()


def _first_words(fields: list[bytes]) -> str:
    return " ".join(part.decode(errors="replace")[:40] for part in fields[:8])
