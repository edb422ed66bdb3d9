"""What a heartbeat means: one row renewed, stale attempts told, forgotten ones taken back. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from endwell.model.commands import CloseSession, Heartbeat, OpenSession
from endwell.model.session import Session, packed_doing
from endwell.model.task import Task


class Renewal(msgspec.Struct, frozen=True):
    """`stale`: attempts the worker must stop. `forgotten`: tasks it holds but left unnamed twice."""

    session: Session | None
    stale: tuple[str, ...] = ()
    forgotten: tuple[Task, ...] = ()


def open_session(command: OpenSession, now: int) -> Session:
    """A session is new at every start, even under the same name on the same host."""
    return Session(
        namespace=command.namespace,
        id=command.session_id,
        kind=command.kind,
        name=command.name,
        host=command.host,
        pid=command.pid,
        agents=" ".join(command.agents),
        concurrency=command.concurrency,
        started_at=now,
        heartbeat_at=now,
        lease_until=now + command.lease,
        process=command.process,
        versions=msgspec.json.encode(command.versions).decode() if command.versions else "",
    )


def renew(session: Session | None, held: Sequence[Task], command: Heartbeat, now: int) -> Renewal:
    """A buried session stays buried: its worker must start a new one and drop what it held."""
    named = {attempt for _, attempt in command.attempts}
    if session is None or session.ended_at is not None:
        return Renewal(None, stale=tuple(named))
    current = {task.attempt_id for task in held}
    unnamed = [t for t in held if t.attempt_id not in named and _claim_of(t) not in command.claiming]
    before = set(session.unnamed.split())
    forgotten = tuple(task for task in unnamed if task.attempt_id in before)
    renewed = replace(
        session,
        heartbeat_at=max(now, session.heartbeat_at),
        lease_until=max(now + command.lease, session.lease_until),
        unnamed=" ".join(sorted(task.attempt_id or "" for task in unnamed)),
        doing=packed_doing(command.doing),
        ticked_at=_ticked_at(session, command, now),
    )
    return Renewal(renewed, stale=tuple(sorted(named - current)), forgotten=forgotten)


def _ticked_at(session: Session, command: Heartbeat, now: int) -> int | None:
    """By the store's clock; a tick that was already told does not move back."""
    if command.tick_age is None:
        return session.ticked_at
    return max(now - command.tick_age, session.ticked_at or 0)


def _claim_of(task: Task) -> str:
    """A claim names the attempts it makes: its own id, a dot and a number."""
    return (task.attempt_id or "").rpartition(".")[0]


def close_session(session: Session, command: CloseSession, now: int) -> Session:
    """Goodbye. A supervisor may bury only a session whose lease has lapsed."""
    if session.ended_at is not None or (command.reason == "lease_lapsed" and session.lease_until > now):
        return session
    return replace(session, ended_at=now, end_reason=command.reason)


def is_live(session: Session | None, now: int) -> bool:
    """Whether writes of this session's attempts are to be expected."""
    return session is not None and session.ended_at is None and session.lease_until > now
