"""Evidence: what a supervisor knows about the holder of a lapsed lease."""

from __future__ import annotations

import msgspec


class HolderEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor knows about the holder of a turn that it reclaims.

    `holder_is_alive`: what this machine's process table says; None if it cannot say. `watched_since`: since
    when the store has answered the supervisor without a gap. `seen_at`: when it last answered before this
    command was handed in; one that waits for longer than `longest_gap` after that is refused. Times are the
    store's.
    """

    holder_is_alive: bool | None = None
    watched_since: int | None = None
    seen_at: int | None = None
    longest_gap: int | None = None
