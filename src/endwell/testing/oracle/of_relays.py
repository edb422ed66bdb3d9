"""Invariants of what the relay sends."""

from __future__ import annotations

from collections.abc import Iterator

from endwell.testing.oracle.registry import invariant
from endwell.testing.oracle.view import OracleView


@invariant("move")
def what_is_told_is_true_and_always_the_same(view: OracleView) -> Iterator[str]:
    """No message is sent before its commit, and a repeated message has the same body."""
    yield from view.bad_deliveries


@invariant("move")
def the_cursor_is_not_ahead(view: OracleView) -> Iterator[str]:
    """Every end up to the relay's cursor has been sent."""
    if view.receiver is None:
        return
    position = _cursor_position(view)
    for seq, message_id in list(view.owed.items()):
        if seq > position:
            break
        if message_id not in view.receiver.bodies:
            yield f"the cursor is at {position}, and {message_id} (at {seq}) was not sent"
        del view.owed[seq]


@invariant("rest")
def every_end_is_told(view: OracleView) -> Iterator[str]:
    """At rest every end of a turn and of a task has been sent, and the relay is at the end of the log."""
    if view.receiver is None:
        return
    yield from view.bad_deliveries
    yield from (f"{one} was not sent" for one in view.owed.values() if one not in view.receiver.bodies)
    position = _cursor_position(view)
    if position != view.seq:
        yield f"the relay's cursor is at {position}, the log ends at {view.seq}"


def _cursor_position(view: OracleView) -> int:
    rows = view.query_rows("SELECT position FROM cursors WHERE name = 'relay'")
    return int(rows[0][0] or 0) if rows else 0
