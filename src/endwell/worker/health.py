"""How a worker is, for whoever watches its process."""

from __future__ import annotations

import msgspec


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`is_overseen` is false when no PMO has ticked for three intervals: then nothing that hangs is ended."""

    has_lease: bool
    tasks: int
    is_overseen: bool
    last_pmo_tick: int | None
    failures: int
