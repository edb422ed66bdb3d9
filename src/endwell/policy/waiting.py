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
MOST_BYTES: Final = 64 * 1024 * 1024
"""Bytes that it may ask with: arguments, payloads and what approvers are shown are written by one commit."""
WAITS_PER_EVENT: Final = 100
"""Waits, or ids of waits, that one event names: the size of an event does not grow with their number."""


def refuse_too_many(calls: Sequence[Call], size: int | None = None) -> BadInput | None:
    """Why a turn may not wait for all of these, if it may not; `size` counts payloads of called tasks too."""
    approvals = sum(call.kind == "approval" for call in calls)
    asked = sum(map(call_size, calls)) if size is None else size
    if len(calls) > MOST_WAITS:
        what = f"for {len(calls):,} answers at once; at most {MOST_WAITS:,} are possible"
    elif approvals > MOST_APPROVALS:
        what = f"for {approvals:,} approvals at once; at most {MOST_APPROVALS:,} are possible"
    elif asked > MOST_BYTES:
        what = f"and ask with more than {MOST_BYTES:,} bytes at once, which is the most that is possible"
    else:
        return None
    return BadInput(
        f"this turn would wait {what}",
        code="too_many_waits",
        hint="gather them in several parts, one after the other",
    )


def call_size(call: Call) -> int:
    """How many bytes of content a call brings."""
    return len(call.content or b"")


def refuse_twice(calls: Sequence[Call]) -> BadInput | None:
    """Why a turn may not wait for these: one answer would be counted as two, or the other way round."""
    ids = {call.tool_call_id for call in calls}
    if len(ids) == len(calls):
        return None
    return BadInput("a turn cannot wait for the same call twice at once", code="same_wait_twice")
