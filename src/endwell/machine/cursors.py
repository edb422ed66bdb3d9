"""Cursors: one holder at a time follows the log, by a lease; a replaced holder moves nothing. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from endwell.errors import Refused
from endwell.model.commands import MoveCursor, TakeCursor
from endwell.model.cursor import Cursor


def take_cursor(cursor: Cursor | None, command: TakeCursor, now: int) -> Cursor | Refused:
    """Give the cursor to the sender, unless another holder's lease has not lapsed."""
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


def move_cursor(cursor: Cursor | None, command: MoveCursor, now: int) -> Cursor | Refused:
    """Move the cursor for its holder, and renew the lease."""
    if cursor is None or (cursor.holder, cursor.fence) != (command.holder, command.fence):
        return Refused(f"another process follows the log as {command.name}", code="cursor_lost")
    return replace(
        cursor,
        position=command.position,
        lease_until=now + command.lease,
        trouble=command.trouble,
        updated_at=now,
    )
