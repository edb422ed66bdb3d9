"""How much one turn may wait for at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from endwell.errors import BadInput
from endwell.model.commands import Call

MOST_WAITS: Final = 10_000
"""Answers that a turn may wait for at the same time: one commit writes a row for each of them."""
MOST_APPROVALS: Final = 100
"""Approvals among them: who was asked, and who has agreed, is part of the task's own row."""
WAITS_PER_EVENT: Final = 100
"""Waits, or ids of waits, that one event names: the size of an event does not grow with their number."""


def refuse_too_many(calls: Sequence[Call]) -> BadInput | None:
    """Why a turn may not wait for all of these, if it may not."""
    approvals = sum(call.kind == "approval" for call in calls)
    if len(calls) > MOST_WAITS:
        what = f"{len(calls):,} answers at once; at most {MOST_WAITS:,} are possible"
    elif approvals > MOST_APPROVALS:
        what = f"{approvals:,} approvals at once; at most {MOST_APPROVALS:,} are possible"
    else:
        return None
    return BadInput(
        f"this turn would wait for {what}",
        code="too_many_waits",
        hint="gather them in several parts, one after the other",
    )
