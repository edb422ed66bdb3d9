"""A session: one start of a worker or PMO process, with a lease that its heartbeat renews.

Leases are not folded state: an attempt is live while it is its task's current one and its
session's lease holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, get_args

import msgspec

FOREIGN_HOST: Final = "redis-stream"
"""The host of the sessions that stand for foreign workers: programs that know only Redis."""


EndReason = Literal["goodbye", "left", "left_processes"]
"""How a worker ends its session. Only "goodbye" promises that nothing of it runs any more. What runs after
"left" ends with the worker's process; after "left_processes" it may outlive it."""
END_REASONS: Final = get_args(EndReason)


class Session(msgspec.Struct, frozen=True, gc=False):
    """Fields in the order of the table's columns."""

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


def is_foreign(session: Session | None) -> bool:
    """Whether the session stands for a foreign worker."""
    return session is not None and session.host == FOREIGN_HOST


class Doing(NamedTuple):
    """What an attempt is executing, and since when."""

    attempt_id: str
    step: str
    since: int


_versions_decoder = msgspec.json.Decoder(dict[str, str])


def versions_of(session: Session) -> dict[str, str]:
    """The version of each agent that the session's worker serves; "" for an agent without one."""
    return _versions_decoder.decode(session.versions) if session.versions else {}


_doing_decoder = msgspec.json.Decoder(tuple[Doing, ...])


def packed_doing(doing: Sequence[tuple[str, str, int]]) -> str:
    """As one column's text."""
    return msgspec.json.encode(doing).decode() if doing else ""


def doing_of(session: Session) -> tuple[Doing, ...]:
    """Which steps its attempts were executing at the last heartbeat."""
    return _doing_decoder.decode(session.doing) if session.doing else ()


SESSION_FIELDS: Final[tuple[str, ...]] = Session.__struct_fields__
