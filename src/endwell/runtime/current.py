"""Which turn the running code belongs to: so that whatever it logs can be traced to its task."""

from __future__ import annotations

from contextvars import ContextVar

CURRENT_TURN: ContextVar[tuple[str, str] | None] = ContextVar("endwell_current_turn", default=None)
"""Task id and attempt id, inside an agent's function and everything that it calls."""
