"""Invariants of the whole installation: at checkpoints, at rest, and after all processes have left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from endwell.model import content
from endwell.model import status as s
from endwell.store.reads.side_rows import is_as_folded
from endwell.testing.oracle.registry import invariant
from endwell.testing.oracle.view import OracleView

MOST_STEPS: Final = 30_000
"""Scheduler steps between two checkpoints; a tenth of this is usual."""


@invariant("checkpoint")
def every_row_is_the_fold_of_its_log(view: OracleView) -> Iterator[str]:
    """There is a row for each task in the log, no other, and each is what its log comes to."""
    rows = {task.id: task for task in view.read_all_rows()}
    if rows.keys() != view.tasks.keys():
        yield f"rows and log know different tasks: {sorted(rows.keys() ^ view.tasks.keys())}"
    yield from (f"{task_id} differs" for task_id in sorted(rows) if rows[task_id] != view.tasks.get(task_id))


@invariant("checkpoint")
def every_row_beside_is_the_fold_of_its_log(view: OracleView) -> Iterator[str]:
    """Approvals, dead letters and waits are what the log comes to: none is missing, none was added."""
    rows, folded = view.side_rows(), view.beside.rows()
    yield from (f"rows and log differ about {key}" for key in sorted(rows.keys() ^ folded.keys()))
    for key in sorted(rows.keys() & folded.keys()):
        if not is_as_folded(rows[key], folded[key]):
            yield f"{key} is {rows[key]}, and the log says {folded[key]}"


@invariant("checkpoint")
def what_was_accepted_is_there(view: OracleView) -> Iterator[str]:
    """A submission that was acknowledged is never lost, and a key belongs to one task."""
    for key, task_id in view.accepted.items():
        if task_id not in view.tasks:
            yield f"{key} was accepted as {task_id}, which is gone"
    keys = Counter(task.idempotency_key for task in view.tasks.values())
    yield from (f"{key} belongs to {n} tasks" for key, n in keys.items() if n > 1)


@invariant("checkpoint")
def dead_letters_are_the_failed(view: OracleView) -> Iterator[str]:
    """There is a dead letter for exactly those tasks whose log says so, never for a success."""
    letters = {row[0]: row[1] for row in view.query_rows("SELECT task_id, status FROM dead_letters")}
    wanted = {task.id: task.dead_letter for task in view.tasks.values() if task.dead_letter is not None}
    if letters.keys() != wanted.keys():
        yield f"dead letters: {sorted(letters.keys() ^ wanted.keys())}"
    for task_id in letters.keys() & wanted.keys():
        if view.tasks[task_id].status not in (s.FAILED, s.TIMEOUT):
            yield f"{task_id} is {view.tasks[task_id].status} and a dead letter"


@invariant("checkpoint")
def a_key_is_held_by_one_turn(view: OracleView) -> Iterator[str]:
    """An agent's key is held by at most one turn, a limited agent runs no more than its limit."""
    held = Counter(
        f"{task.agent}/{task.agent_key}"
        for task in view.tasks.values()
        if task.agent_key is not None and task.turn_id is not None and not task.is_ended
    )
    yield from (f"{key} is held {n} times" for key, n in held.items() if n > 1)
    busy = Counter(t.agent for t in view.tasks.values() if t.status in (s.RUNNING, s.DISPATCHED))
    for agent, limit in view.query_rows("SELECT name, concurrency FROM agents WHERE concurrency IS NOT NULL"):
        if busy[agent] > limit:
            yield f"{busy[agent]} turns of {agent} at once"


@invariant("checkpoint")
def slots_belong_to_who_holds_them(view: OracleView) -> Iterator[str]:
    """A slot is taken by exactly the task whose row names it."""
    taken = {(row[0], row[1]): row[2] for row in view.query_rows("SELECT agent, slot, task_id FROM slots")}
    for (agent, slot), task_id in taken.items():
        if task_id is not None and view.tasks[task_id].slot != slot:
            yield f"slot {slot} of {agent} is kept by {task_id}"


@invariant("checkpoint")
def nothing_is_overdue(view: OracleView) -> Iterator[str]:
    """While no fault acts, no clock is late by more than a few ticks of a supervisor."""
    if view.calm_since_us is None or view.now_us - view.calm_since_us < 6 * view.tick_us:
        return
    for task in view.tasks.values():
        if task.clock_at is not None and task.clock_at < view.now_us - 6 * view.tick_us:
            late = (view.now_us - task.clock_at) / 1e6
            yield f"{task.id} ({task.status}): {task.clock_rule} is late by {late:.0f} s"


@invariant("checkpoint")
def nobody_spins(view: OracleView) -> Iterator[str]:
    """No process spins: between two checkpoints the scheduler takes a limited number of steps."""
    spent, view.steps_before = view.steps_taken - view.steps_before, view.steps_taken
    if spent > MOST_STEPS:
        yield f"{spent} steps since the last checkpoint"


@invariant("checkpoint")
def nobody_is_surprised(view: OracleView) -> Iterator[str]:
    """The product knows every error by name: none of its loops logs an unexpected exception."""
    yield from view.log.surprises if view.log is not None else ()


@invariant("checkpoint")
def nobody_says_what_is_secret(view: OracleView) -> Iterator[str]:
    """No line of the log has a password or a key in it."""
    yield from view.log.leaks if view.log is not None else ()


@invariant("rest")
def everything_has_ended(view: OracleView) -> Iterator[str]:
    """Every task has reached one of the four ends."""
    for task in view.tasks.values():
        if not task.is_ended:
            yield f"{task.id} ({task.agent}) is still {task.status} ({task.reason})"


@invariant("rest")
def accepted_is_ended(view: OracleView) -> Iterator[str]:
    """As many tasks have ended as were created: none is missing, none is counted twice."""
    created = view.query_rows("SELECT count(*) FROM events WHERE type = 'task.created'")[0][0]
    ends = ", ".join(f"'task.{status}'" for status in sorted(s.TERMINAL))
    ended = view.query_rows(f"SELECT count(*) FROM events WHERE type IN ({ends})")[0][0]  # noqa: S608
    if created != ended or created != len(view.tasks):
        yield f"{created} created, {ended} ended, {len(view.tasks)} rows"


@invariant("rest")
def results_are_right(view: OracleView) -> Iterator[str]:
    """A task that succeeded has the result that follows from its payload."""
    for task_id, value in view.expected.items():
        task = view.tasks.get(task_id)
        if task is None or task.status != s.SUCCEEDED:
            continue
        card = view.query_rows("SELECT content FROM cards WHERE id = ?", (task.deliverable_card,))
        found = content.decode_stored(card[0][0]) if card else None
        if found != value:
            yield f"{task_id} ({task.agent}) returned {found!r} instead of {value!r}"


@invariant("rest")
def no_message_is_left(view: OracleView) -> Iterator[str]:
    """Every message was consumed, skipped or marked as an error: none is pending or in progress."""
    rows = view.query_rows(
        "SELECT id, message_type, status, task_id, watchdog_error FROM agent_inbox "
        "WHERE status NOT IN ('consumed', 'error', 'skipped')"
    )
    yield from (f"{kind} {name} for {task} is {status}" for name, kind, status, task, _ in rows)


@invariant("rest")
def no_answer_is_on_its_way(view: OracleView) -> Iterator[str]:
    """The resume ledger and the list of waits are settled."""
    ledger = view.query_rows(
        "SELECT task_id, status FROM turn_resume_ledger WHERE status IN ('pending', 'processing')"
    )
    yield from (f"an answer for {task} is {status}" for task, status in ledger)
    waits = view.query_rows("SELECT task_id, kind FROM turn_waiting_tools WHERE wait_status = 'waiting'")
    yield from (f"{task} waits for a {kind}" for task, kind in waits)


@invariant("rest")
def no_effect_is_in_flight(view: OracleView) -> Iterator[str]:
    """No effect is still intended."""
    for key, status in view.query_rows("SELECT key, status FROM effects WHERE status = 'intended'"):
        yield f"{key} is still {status}"


@invariant("rest")
def effects_tell_the_truth(view: OracleView) -> Iterator[str]:
    """An effect recorded as done took place; an effect recorded as not done did not.

    What was "not done" at a backup may have been done before its restore.
    """
    rows = view.query_rows(
        "SELECT key, status FROM effects e WHERE status != 'not_done' "
        "OR updated_at > coalesce((SELECT restored_at FROM restores r WHERE r.namespace = e.namespace), 0)"
    )
    for key, status in rows:
        happened = view.outside.calls[key] > 0
        if key in view.outside.repeatable:
            continue  # "not done" then only means that it may be done again
        if (status == "done") != happened and status in ("done", "not_done"):
            yield f"{key} is {status}, and took place {view.outside.calls[key]} times"


@invariant("rest")
def nothing_is_held(view: OracleView) -> Iterator[str]:
    """No slot is taken, no approval open, no session is left of a process that is gone."""
    yield from (
        f"{row[0]} keeps a slot"
        for row in view.query_rows("SELECT task_id FROM slots WHERE task_id NOT NULL")
    )
    yield from (
        f"approval {row[0]} is open"
        for row in view.query_rows("SELECT id FROM approvals WHERE decision IS NULL")
    )
    for name, pid in view.query_rows("SELECT name, pid FROM sessions WHERE ended_at IS NULL"):
        if pid not in view.live_pids and name not in view.live_names:
            yield f"a session of {name} (pid {pid}) is left"


@invariant("rest")
def the_database_is_sound(view: OracleView) -> Iterator[str]:
    """SQLite finds nothing wrong with its file."""
    said = view.query_rows("PRAGMA integrity_check")[0][0]
    if said != "ok":
        yield said


@invariant("left")
def everybody_goes_when_told_to(view: OracleView) -> Iterator[str]:
    """A process that is asked to stop drains, closes its session and ends."""
    yield from (f"{name} is still here" for name in view.still_here)


@invariant("left")
def nothing_is_left_behind(view: OracleView) -> Iterator[str]:
    """When all processes have left, only the database and its lock file remain."""
    kept = ("endwell.db", "endwell.db-checkpoint")
    yield from (f"{name} is left" for name in view.files if name not in kept)
