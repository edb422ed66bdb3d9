"""Invariants of tasks and their log, judged after every transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.inside import inside_of
from endwell.model.task import open_waits
from endwell.policy.guard import is_suspect
from endwell.store.log import hash_of
from endwell.testing.oracle.registry import invariant
from endwell.testing.oracle.view import CommitStep, OracleView, plain_name

LATE: Final = (
    "write.refused",
    "dlq.replayed",
    "dlq.abandoned",
    "task.dlq",
    "effect.settled",
    "effect.unknown",
    "inbox.skipped",
)
"""Events that may follow the end of a task; none of them moves it."""
FENCED: Final = (
    f.StepStarted,
    f.StepRecorded,
    f.EffectIntended,
    f.EffectDone,
    f.TaskHeartbeat,
    f.DraftKept,
    f.TaskSuspended,
    f.SucceededEnding,
    f.TaskHandedBack,
)
"""Facts that only the holder of a task may cause."""


@invariant("commit")
def a_task_ends_once(view: OracleView) -> Iterator[str]:
    """A task has exactly one terminal event, and after it only late facts."""
    for step in view.steps:
        if step.before is not None and step.before.is_ended and step.event.type not in LATE:
            yield f"{step.event.type} after the end of {step.event.task_id}"


@invariant("commit")
def what_has_ended_stays_ended(view: OracleView) -> Iterator[str]:
    """A terminal status never changes."""
    for step in view.steps:
        if step.before is not None and step.before.is_ended and step.after.status != step.before.status:
            yield f"{step.event.task_id} went from {step.before.status} to {step.after.status}"


@invariant("commit")
def attempts_are_new(view: OracleView) -> Iterator[str]:
    """Every claim has an attempt of its own."""
    for step in view.steps:
        if isinstance(step.fact, f.TaskClaimed):
            attempt = step.after.attempt_id or ""
            if attempt in view.attempts:
                yield f"attempt {attempt} of {step.event.task_id} was given twice"
            view.attempts.add(attempt)


@invariant("commit")
def writes_name_the_holder(view: OracleView) -> Iterator[str]:
    """A fact that only a holder may cause names the attempt that holds the task at that moment."""
    holders: dict[tuple[str, str], str | None] = {}
    for step in view.steps:
        event = step.event
        held_by = None if step.before is None else step.before.attempt_id
        holder = holders.setdefault(
            (event.task_id, event.command_id), held_by
        )  # when the command was decided
        if isinstance(step.fact, FENCED) and event.attempt_id != holder:
            yield f"{event.type} of {event.task_id} by {event.attempt_id}, held by {holder}"


@invariant("commit")
def nobody_takes_what_is_held(view: OracleView) -> Iterator[str]:
    """A task is claimed only while no attempt holds it."""
    for step in view.steps:
        held = step.before is not None and step.before.attempt_id is not None
        if isinstance(step.fact, f.TaskClaimed) and held:
            yield f"{step.event.task_id} was claimed although held"


@invariant("commit")
def a_worker_holds_one_suspect(view: OracleView) -> Iterator[str]:
    """A worker holds at most one task that one more crash would end."""
    limit = view.limits.crash_limit
    for step in view.steps:
        claimed = step.after
        if not isinstance(step.fact, f.TaskClaimed) or not is_suspect(claimed.crash_count, limit):
            continue
        for other in view.tasks.values():
            is_same_worker = other.session_id == claimed.session_id and other.id != claimed.id
            if is_same_worker and is_suspect(other.crash_count, limit):
                yield f"{claimed.id} was claimed beside {other.id}; each would end with one more crash"


@invariant("commit")
def the_log_has_no_gap(view: OracleView) -> Iterator[str]:
    """Versions of a task follow each other without a gap, each hash covers the one before."""
    for step in view.steps:
        version = 0 if step.before is None else step.before.version
        previous = b"" if step.before is None else step.before.head_hash
        if step.event.version != version + 1:
            yield f"{step.event.task_id} went from version {version} to {step.event.version}"
        elif hash_of(step.event, previous) != step.event.hash:
            yield f"the hash of {step.event.event_id} is wrong"


@invariant("commit")
def the_fold_is_the_row(view: OracleView) -> Iterator[str]:
    """The fold of a task's events equals its row, field by field."""
    for task_id in {step.event.task_id: None for step in view.steps}:
        row, fold = view.read_row(task_id), view.tasks[task_id]
        if row != fold:
            yield f"{task_id}: {_describe_difference(row, fold)}"


@invariant("commit")
def a_suspended_turn_counts_its_waits(view: OracleView) -> Iterator[str]:
    """As many rows are open as the task counts, and none is overdue before its clock."""
    for task_id in {step.event.task_id: None for step in view.steps}:
        task = view.tasks[task_id]
        if task.status != s.SUSPENDED:
            continue
        ((count, at),) = view.query_rows(
            "SELECT count(*), min(CASE WHEN is_reported = 0 THEN deadline END) FROM turn_waiting_tools "
            "WHERE namespace = ? AND turn_id = ? AND wait_status = 'waiting'",
            (task.namespace, task.turn_id or ""),
        )
        if count != open_waits(task):
            yield f"{task_id} counts {open_waits(task)} open waits, and has {count}"
        if at is not None and (task.wait_by is None or task.wait_by > at):
            yield f"a wait of {task_id} is over at {at}, and its clock is {task.wait_by}"


def _describe_difference(row: object, fold: object) -> str:
    fields = getattr(fold, "__struct_fields__", ())
    parts = [
        f"{name} is {getattr(row, name, None)!r}, folded {getattr(fold, name)!r}"
        for name in fields
        if getattr(row, name, None) != getattr(fold, name)
    ]
    return "; ".join(parts)


@invariant("commit")
def time_does_not_run_back(view: OracleView) -> Iterator[str]:
    """Within a task no event is earlier than the one before, and its epoch never falls."""
    for step in view.steps:
        if step.before is None:
            continue
        if step.event.at < step.before.updated_at or step.after.epoch < step.before.epoch:
            yield f"{step.event.event_id} ({step.event.type}) runs back"


@invariant("commit")
def no_task_without_a_clock(view: OracleView) -> Iterator[str]:
    """Every live task has a clock. Only an accepted hold, or one for an unknown effect, stops `ends_by`."""
    for step in view.steps:
        task = step.after
        if task.is_ended or step is not _last_of(view, task.id):
            continue
        if task.clock_at is None:
            yield f"{task.id} is {task.status} without a clock"
        elif task.clock_at > task.ends_by and task.held_since is None:
            yield f"{task.id}: its clock is later than its end"
        elif task.held_since is not None and not (inside_of(task).accepted_by or inside_of(task).held_for):
            yield f"{task.id}: ends_by stands still although no person accepted the task"


def _last_of(view: OracleView, task_id: str) -> CommitStep:
    return next(step for step in reversed(view.steps) if step.event.task_id == task_id)


@invariant("commit")
def limits_hold(view: OracleView) -> Iterator[str]:
    """No task is retried, delivered or crashed more often than its limits say."""
    for step in view.steps:
        task, limits = step.after, view.limits
        if task.dispatch_count > limits.runaway_limit:
            yield f"{task.id} was delivered {task.dispatch_count} times"
        if task.retry_count > limits.retry.max_retries + 1:
            yield f"{task.id} was retried {task.retry_count} times"
        if isinstance(step.fact, f.TaskClaimed) and task.crash_count >= limits.crash_limit:
            yield f"{task.id} was claimed after {task.crash_count} crashes"


@invariant("commit")
def a_crash_is_a_process_that_died(view: OracleView) -> Iterator[str]:
    """Only a turn whose worker's process is dead counts as crashed; foreign workers have no process here."""
    for step in view.steps:
        if not isinstance(step.fact, f.TaskReclaimed) or step.fact.cost != "crash":
            continue
        for (pid,) in view.query_rows("SELECT pid FROM sessions WHERE id = ?", (step.fact.session_id,)):
            if pid and view.is_alive(pid):
                yield f"{step.event.task_id} counts a crash of process {pid}, which lives"


@invariant("commit")
def a_decision_is_made_once(view: OracleView) -> Iterator[str]:
    """An approval has at most one decision."""
    for step in view.steps:
        if isinstance(step.fact, f.ApprovalApproved | f.RejectedApproval | f.ExpiredApproval):
            name = step.fact.id or step.event.task_id
            if name in view.decided:
                yield f"{name} was {view.decided[name]}, then {step.event.type}"
            view.decided[name] = step.event.type


@invariant("commit")
def effects_happen_at_most_once(view: OracleView) -> Iterator[str]:
    """Under one effect key the world outside is changed at most once."""
    for key in view.outside.repeated_keys():
        yield f"{key} took place {view.outside.calls[key]} times"


@invariant("commit")
def what_is_recorded_is_not_computed_again(view: OracleView) -> Iterator[str]:
    """No attempt that holds its task runs a step whose record was there before."""
    for step in view.steps:
        if isinstance(step.fact, f.StepRecorded) and step.fact.result_type == "success":
            view.recorded.add((step.event.task_id, plain_name(step.fact.step)))
    yield from view.ran_again
