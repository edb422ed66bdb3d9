"""A session: one start of a worker or PMO process, with a lease that its heartbeat renews.

Leases are not folded state: an attempt is live while it is its task's current one and its
session's lease holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec


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


class Doing(NamedTuple):
    """What an attempt is executing, and since when."""

    attempt_id: str
    step: str
    since: int


_doing_decoder = msgspec.json.Decoder(tuple[Doing, ...])


def packed_doing(doing: Sequence[tuple[str, str, int]]) -> str:
    """As one column's text."""
    return msgspec.json.encode(doing).decode() if doing else ""


def doing_of(session: Session) -> tuple[Doing, ...]:
    """Which steps its attempts were executing at the last heartbeat."""
    return _doing_decoder.decode(session.doing) if session.doing else ()


SESSION_FIELDS: Final[tuple[str, ...]] = Session.__struct_fields__
