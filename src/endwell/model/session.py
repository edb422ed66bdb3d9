"""A session: one start of a worker or PMO process, with a lease that its heartbeat renews.

Leases are not folded state: an attempt is live while it is its task's current one and its
session's lease holds.
"""

from __future__ import annotations

from typing import Final

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


SESSION_FIELDS: Final[tuple[str, ...]] = Session.__struct_fields__
