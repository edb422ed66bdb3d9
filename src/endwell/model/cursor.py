"""A cursor: how far one follower of the log has come, and who may move it. Not folded state."""

from __future__ import annotations

from typing import Final

import msgspec


class Cursor(msgspec.Struct, frozen=True, gc=False):
    """In the order of the table's columns. `fence` rises with every new holder.

    `trouble` is why the follower does not get on, told to whoever asks; None while it does.
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
