"""The turn that the running code belongs to, so that log lines and submissions can be traced to it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class CurrentTurn(NamedTuple):
    """A turn, and how often and since when the chain of tasks that led to it was delivered."""

    task_id: str
    attempt_id: str
    namespace: str
    deliveries: int
    origin_at: int


CURRENT_TURN: ContextVar[CurrentTurn | None] = ContextVar("endwell_current_turn", default=None)
"""Set inside an agent's function and everything that it calls."""
