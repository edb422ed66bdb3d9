"""Who may follow the log: one holder at a time, by a lease; whoever was replaced moves nothing. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from endwell.errors import EndwellError, Refused
from endwell.model.commands import MoveCursor, TakeCursor
from endwell.model.cursor import Cursor


def take(cursor: Cursor | None, command: TakeCursor, now: int) -> Cursor | EndwellError:
    """A free cursor is anybody's; one that is held is refused until its lease has lapsed."""
    if cursor is None:
        return Cursor(
            namespace=command.namespace,
            name=command.name,
            position=command.start,
            holder=command.holder,
            fence=1,
            lease_until=now + command.lease,
            trouble=None,
            updated_at=now,
        )
    if cursor.holder != command.holder and cursor.lease_until > now:
        return Refused(f"{cursor.holder} follows the log as {cursor.name}", code="cursor_held")
    fence = cursor.fence + (cursor.holder != command.holder)
    return replace(
        cursor, holder=command.holder, fence=fence, lease_until=now + command.lease, updated_at=now
    )


def move(cursor: Cursor | None, command: MoveCursor, now: int) -> Cursor | EndwellError:
    """Only its holder moves it. Without a lease the holder lets go of it."""
    if cursor is None or (cursor.holder, cursor.fence) != (command.holder, command.fence):
        return Refused(f"somebody else follows the log as {command.name}", code="cursor_lost")
    return replace(
        cursor,
        position=command.position,
        lease_until=now + command.lease,
        trouble=command.trouble,
        updated_at=now,
    )
