"""Which turn the running code belongs to: so that whatever it logs or submits can be traced to its task."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class CurrentTurn(NamedTuple):
    """`deliveries` is how often its task, and the chain of tasks that led to it, were delivered.

    `origin_at` is when the first task of that chain was submitted.
    """

    task_id: str
    attempt_id: str
    namespace: str
    deliveries: int
    origin_at: int


CURRENT_TURN: ContextVar[CurrentTurn | None] = ContextVar("endwell_current_turn", default=None)
"""Set inside an agent's function and everything that it calls."""
