"""Sessions: opening, renewing and ending them, and which reports a foreign session may send. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from endwell.errors import WrongStatus
from endwell.model.commands import CloseSession, ForeignReport, Heartbeat, OpenSession
from endwell.model.session import Session, is_foreign, packed_doing
from endwell.model.task import Task


class Renewal(msgspec.Struct, frozen=True):
    """What follows from a heartbeat; without a `session` the worker must open a new one.

    `stale`: attempts that the worker must stop. `forgotten`: tasks that it holds and did not name twice.
    """

    session: Session | None
    stale: tuple[str, ...] = ()
    forgotten: tuple[Task, ...] = ()


def open_session(command: OpenSession, now: int) -> Session:
    """A new session, at every start of a process."""
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


def renew_lease(session: Session | None, held: Sequence[Task], command: Heartbeat, now: int) -> Renewal:
    """Renew the lease, and compare the named attempts with those that the session holds.

    An ended session stays ended: its worker must open a new one and drop what it held.
    """
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
    """When the supervisor last finished a tick, by the store's clock; it never moves back."""
    if command.tick_age is None:
        return session.ticked_at
    return max(now - command.tick_age, session.ticked_at or 0)


def _claim_of(task: Task) -> str:
    """The claim that made the task's attempt: an attempt's id is the claim's id, a dot and a number."""
    return (task.attempt_id or "").rpartition(".")[0]


def close_session(session: Session, command: CloseSession, now: int) -> Session:
    """End the session. A supervisor may end only a session whose lease has lapsed."""
    if session.ended_at is not None or (command.reason == "lease_lapsed" and session.lease_until > now):
        return session
    return replace(session, ended_at=now, end_reason=command.reason)


def is_live(session: Session | None, now: int) -> bool:
    """Whether the session is open and its lease holds."""
    return session is not None and session.ended_at is None and session.lease_until > now


def refuse_foreign_report(
    task: Task | None, session: Session | None, command: ForeignReport
) -> WrongStatus | None:
    """Refuse a report on an attempt that another worker holds; None lets the fence judge the attempt.

    Attempt ids are published, so a report that names the right attempt proves nothing about its sender.
    """
    if task is None or task.attempt_id != command.report.attempt_id:
        return None
    holder = (task.session_id, command.worker)
    if session is not None and is_foreign(session) and holder == (session.id, session.name):
        return None
    return WrongStatus(
        f"attempt {task.attempt_id} of task {task.id} is not held by the foreign worker {command.worker}",
        code="not_the_holder",
        task_id=task.id,
        hint="a worker on the stream reports only on turns that were granted to its own name",
    )
