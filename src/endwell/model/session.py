"""Sessions: one start of a worker or PMO process, with a lease that its heartbeat renews.

Leases are not folded from the log: an attempt is live while it is its task's current one and its session's
lease holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from endwell.model.base import Command

FOREIGN_HOST: Final = "redis-stream"
"""The host of the sessions that stand for foreign workers: programs that know only Redis."""
EndReason = Literal["goodbye", "left", "left_processes"]
"""How a worker ends its session: "goodbye" promises that none of its calls runs any more; after "left" calls
end with the worker's process; after "left_processes" they may outlive it."""
END_REASONS: Final = get_args(EndReason)


class Session(msgspec.Struct, frozen=True, gc=False):
    """One session, in the order of the table's columns."""

    namespace: str
    id: str
    kind: str
    name: str
    host: str
    pid: int
    agents: str
    concurrency: int
    started_at: int
    heartbeat_at: int
    lease_until: int
    unnamed: str = ""
    ended_at: int | None = None
    end_reason: str | None = None
    doing: str = ""
    ticked_at: int | None = None
    process: str = ""
    versions: str = ""


SESSION_FIELDS: Final[tuple[str, ...]] = Session.__struct_fields__


class Doing(NamedTuple):
    """The step that an attempt is executing, and since when."""

    attempt_id: str
    step: str
    since: int


class OpenSession(Command, frozen=True, kw_only=True):
    """Open a session for a process; the session it `lost` ends, and hands its turns back."""

    session_id: str
    kind: str
    name: str
    host: str
    pid: int
    agents: tuple[str, ...]
    concurrency: int
    lease: int
    process: str = ""
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    lost: str | None = None


class Heartbeat(Command, frozen=True, kw_only=True):
    """Renew the session's lease, and name every attempt that it holds.

    `claiming` names claims whose reply the worker has not seen yet: what they claimed is not forgotten.
    `doing` says which attempt has executed which step since when, `tick_age` how long ago the supervisor in
    that process last finished a tick.
    """

    session_id: str
    lease: int
    attempts: tuple[tuple[str, str], ...] = ()
    claiming: tuple[str, ...] = ()
    doing: tuple[tuple[str, str, int], ...] = ()
    tick_age: int | None = None


class CloseSession(Command, frozen=True, kw_only=True):
    """End a session: by its own process, or because its lease lapsed.

    `hands_back`: the turns that the session still holds are handed back in the same commit.
    """

    session_id: str
    reason: str = "goodbye"
    hands_back: bool = False


_versions_decoder = msgspec.json.Decoder(dict[str, str])
_doing_decoder = msgspec.json.Decoder(tuple[Doing, ...])


def is_foreign(session: Session | None) -> bool:
    """Whether the session stands for a foreign worker."""
    return session is not None and session.host == FOREIGN_HOST


def versions_of(session: Session) -> dict[str, str]:
    """The version of each agent that the session's worker serves; "" for an agent without one."""
    return _versions_decoder.decode(session.versions) if session.versions else {}


def packed_doing(doing: Sequence[tuple[str, str, int]]) -> str:
    """The steps in progress as one column's text."""
    return msgspec.json.encode(doing).decode() if doing else ""


def doing_of(session: Session) -> tuple[Doing, ...]:
    """The steps that its attempts were executing at the last heartbeat."""
    return _doing_decoder.decode(session.doing) if session.doing else ()
