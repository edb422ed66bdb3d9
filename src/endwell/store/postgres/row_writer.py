"""Composes the statements that write a batch: rows added and moved, then rows closed, then waits dropped.

Closing comes second because a batch may close a row that it adds, and a statement does not see its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from msgspec.structs import astuple

from endwell.store.log import EVENT_FIELDS, EventRow
from endwell.store.postgres.statements import POSITIONS_DRAWN, join_queries
from endwell.store.rows import Writes

Statement = tuple[str, list[Any]]
_Rows = Sequence[tuple[Any, ...]]
_Key = Callable[[tuple[Any, ...]], Any]
_COMMAND_ID: Final = itemgetter(EVENT_FIELDS.index("command_id"))

# Within one statement a row may be written once. Of rows to save the last one counts, ...
_SAVED: Final[dict[str, _Key]] = {
    "add_approval": itemgetter(0, 1),
    "add_wait": itemgetter(0, 2, 3),
    "fold_tallies": itemgetter(2),
    "add_rule": itemgetter(0, 1, 2),
    "mark_restored": itemgetter(0),
}
_ADDED: Final = (
    "add_inbox_turn",
    "add_dead_letter",
    "add_approval",
    "add_wait",
    "add_resume",
    "fold_tallies",
    "add_rule",
    "mark_restored",
)
# ... of rows to close the first, except for marks, which may go back and forth within a batch, and for
# waits, which are reported before they are answered.
_CLOSED: Final[dict[str, _Key]] = {
    "requeue_message": itemgetter(1, 2),
    "mark_inbox": itemgetter(4, 5),
    "close_dead_letter": itemgetter(2, 3),
    "close_approval": itemgetter(3, 4),
    "answer_wait": itemgetter(4, 5, 6),
    "drop_waits": itemgetter(1, 2),
    "doubt_effect": itemgetter(1, 2),
    "close_message": itemgetter(3, 4),
    "take_resume": itemgetter(3, 4),
    "count_delivery": itemgetter(0, 1),
    "reset_deliveries": itemgetter(0, 1),
    "close_resume": itemgetter(2, 3),
    "requeue_resumes": itemgetter(1),
    "vote_approval": itemgetter(1, 2),
    "drop_tallies": itemgetter(1),
    "drop_rules": itemgetter(1, 2, 3),
    "drop_expired_agents": itemgetter(1),
}


_LAST_COUNTS: Final = ("mark_inbox", "answer_wait")


def compose_statements(writes: Writes, writer: str) -> list[Statement]:
    """Return the statements that write a batch; none when there is nothing to write.

    `writer` names the connection, whose counters are a row of its own.
    """
    first, *more = event_blocks(writes.events)
    groups = [list(_row_pieces(writes, writer, first))] + [[("add_events", [events])] for events in more]
    if writes.side:  # most batches have none
        groups[0] += _side_additions(writes, writer)
        closings = list(_side_closings(writes, writer))
        # a wait that this batch answers must not be found open by what drops the waits of its turn
        groups.append([piece for piece in closings if piece[0] != "drop_waits"])
        groups.append([piece for piece in closings if piece[0] == "drop_waits"])
    return [_join_pieces(group, len(writes.moved)) for group in groups if group]


def event_blocks(events: list[EventRow], most: int = POSITIONS_DRAWN) -> list[list[EventRow]]:
    """Divide events into blocks for one draw of positions each. A command's events stay together."""
    if len(events) <= most:
        return [events]
    found: list[list[EventRow]] = [[]]
    for _, run in groupby(events, key=_COMMAND_ID):
        commit = list(run)
        if len(found[-1]) + len(commit) > most:
            found.append([])
        found[-1] += commit
    return found


def _join_pieces(pieces: list[tuple[str, list[Any]]], moved: int) -> Statement:
    names = tuple(name for name, _ in pieces)
    parameters = [value for _, values in pieces for value in values]
    return join_queries(names), [*parameters, moved] if "move_tasks" in names else parameters


def _row_pieces(writes: Writes, writer: str, events: list[EventRow]) -> Iterable[tuple[str, list[Any]]]:
    if writes.moved:
        # in the same order everywhere, so that two stores never wait for each other
        moved = sorted(writes.moved, key=lambda move: (move[0].namespace, move[0].id))
        yield "move_tasks", [[astuple(task) for task, _ in moved], [seen for _, seen in moved]]
    if writes.created:
        yield "add_tasks", [[astuple(task) for task in writes.created]]
    if events:
        yield "add_events", [events]
    if writes.cards:
        yield "add_cards", [[astuple(card) for card in writes.cards]]
    if writes.slots:
        slots = {row[1:]: row for row in writes.slots}
        yield "set_slots", _columns([slots[key] for key in sorted(slots)])
    if writes.effects_added:
        yield "add_effects", [[astuple(effect) for effect in writes.effects_added]]
    if writes.effects_moved:
        yield "move_effects", [[astuple(effect) for effect in writes.effects_moved]]
    if writes.messages:
        yield "add_messages", [[astuple(message) for message in writes.messages]]
    if writes.sessions:
        yield "save_sessions", [[astuple(session) for session in writes.sessions]]
    if writes.cursors:
        yield "save_cursors", _columns([astuple(cursor) for cursor in writes.cursors])
    if writes.tallies:
        counted = _columns([(name, *counts) for name, counts in writes.tallies.items()])
        yield "add_tallies", [writer, writes.now, *counted]
    if writes.agents:
        yield from _agent_pieces(writes)


def _agent_pieces(writes: Writes) -> Iterable[tuple[str, list[Any]]]:
    agents = {(namespace, spec.name): (at, spec) for namespace, at, spec in writes.agents}
    ordered = [(namespace, *agents[namespace, name]) for namespace, name in sorted(agents)]
    yield "save_agents", _columns([(namespace, at, *astuple(spec)) for namespace, at, spec in ordered])
    limited = [(namespace, spec.name, spec.concurrency) for namespace, _, spec in ordered if spec.concurrency]
    if limited:
        yield "add_slots", _columns(limited)


def _side_additions(writes: Writes, writer: str) -> Iterable[tuple[str, list[Any]]]:
    for name in _ADDED:
        rows = writes.side.get(name)
        if not rows:
            continue
        if name in _SAVED:
            rows = list({_SAVED[name](row): row for row in rows}.values())
        yield name, _columns(_with_writer(name, rows, writer))


def _side_closings(writes: Writes, writer: str) -> Iterable[tuple[str, list[Any]]]:
    for name, key in _CLOSED.items():
        if rows := writes.side.get(name):
            first = {key(row): row for row in (rows if name in _LAST_COUNTS else reversed(rows))}
            yield name, _columns(_with_writer(name, [first[each] for each in sorted(first)], writer))


def _with_writer(name: str, rows: _Rows, writer: str) -> _Rows:
    """Queries that add counters up must know which are the connection's own."""
    return [(*row, writer) for row in rows] if name in ("fold_tallies", "drop_tallies") else rows


def _columns(rows: _Rows) -> list[Any]:
    return list(zip(*rows, strict=True))
