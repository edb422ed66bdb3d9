"""Cursors: how far a follower has read the log, and who may move the cursor. Not folded from the log."""

from __future__ import annotations

from typing import Final

import msgspec

from endwell.model.base import Command


class Cursor(msgspec.Struct, frozen=True, gc=False):
    """One cursor, in the order of the table's columns.

    `fence` rises with every new holder; `trouble` is why the follower does not advance, None while it does.
    """

    namespace: str
    name: str
    position: str
    holder: str
    fence: int
    lease_until: int
    trouble: str | None
    updated_at: int


CURSOR_FIELDS: Final[tuple[str, ...]] = Cursor.__struct_fields__


class TakeCursor(Command, frozen=True, kw_only=True):
    """Follow the log under this name, from the last holder's position; `start` is used by the very first."""

    name: str
    holder: str
    lease: int
    start: str = ""


class MoveCursor(Command, frozen=True, kw_only=True):
    """Record the holder's position, and renew its lease; a lease of 0 releases the cursor."""

    name: str
    holder: str
    fence: int
    position: str
    lease: int
    trouble: str | None = None
