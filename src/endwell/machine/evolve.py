"""evolve(task, fact) -> task: what each fact does to a task. Pure, total, and the only fold there is.

The store, the explorer and the rebuild tool use this one function; live state is the fold of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from endwell.machine import evolve_holds
from endwell.machine.clocks import arm
from endwell.machine.evolve_holds import RELEASED
from endwell.machine.evolve_rows import WaitFact, evolve_waits
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.inside import changed_inside, inside_of, packed_inside
from endwell.model.task import (
    Redelivery,
    Task,
    counted_waits,
    has_wait_rows,
    open_waits,
    packed_waits,
    waits_of,
)

# cleared when a task ends; its turn, if it had one, ended a fact before.
# `expire_at` stays, and says that the task was never approved
_ENDED: Final[dict[str, Any]] = {
    "remind_at": None,
    "recover_at": None,
    "guard_at": None,
    "guard_reason": None,
    "held_since": None,
}


def evolve(task: Task | None, fact: f.Fact, at: int, *, namespace: str = "", task_id: str = "") -> Task:
    """The task after the fact; namespace and id are needed for a creation, which starts from no task."""
    after = fold(task, fact, at, namespace, task_id)
    return stamp(after, after.version + 1, at, after.head_hash)


def fold(task: Task | None, fact: f.Fact, at: int, namespace: str, task_id: str) -> Task:
    """The task after the fact without the stamp, which facts within one commit do not need."""
    if task is not None:
        return _FOLDS[type(fact)](task, fact, at)
    if not isinstance(fact, f.TaskCreated):
        raise ValueError(f"{fact.type} of a task that was never created")
    return _create_task(fact, at, namespace, task_id)


def stamp(task: Task, version: int, at: int, head_hash: bytes) -> Task:
    """Set version, time and clock after one or more facts."""
    clock_at, clock_rule = arm(task)
    return replace(
        task, version=version, updated_at=at, clock_at=clock_at, clock_rule=clock_rule, head_hash=head_hash
    )


def _create_task(fact: f.TaskCreated, at: int, namespace: str, task_id: str) -> Task:
    """Positional up to the fields that change: keyword arguments would cost a large dict on the hot path."""
    return Task(
        namespace,
        task_id,
        fact.agent,
        fact.agent_key,
        fact.key or task_id,
        fact.channel,
        fact.fair_key,
        fact.agent_version,
        fact.trace,
        fact.parent_id,
        fact.replay_of,
        fact.payload_card,
        fact.payload_hash,
        fact.priority,
        fact.retry_policy,
        fact.family,
        at,
        status=s.QUEUED,
        owner=fact.owner,
        run_at=fact.run_at,
        ends_by=fact.ends_by,
        guard_at=fact.guard_at,
        guard_reason=None if fact.guard_at is None else "runaway_guard",
    )


def _copy_fields(*names: str) -> Callable[[Task, Any, int], Task]:
    """A fold that only takes over these fields of the fact."""

    def fold(task: Task, fact: f.Fact, at: int) -> Task:
        return replace(task, **{name: getattr(fact, name) for name in names})

    return fold


def _fold_dispatched(task: Task, fact: f.TaskDispatched, at: int) -> Task:
    return replace(
        task,
        status=s.DISPATCHED,
        turn_id=fact.turn_id,
        turn_number=fact.turn_number,
        dispatch_count=fact.dispatch_count,
        epoch=fact.epoch,
        ring_at=fact.ring_at,
        dispatch_by=fact.dispatch_by,
        slot=fact.slot,
        guard_at=fact.guard_at,
        guard_reason="runaway_guard" if fact.guard_at is not None else None,
        inside=changed_inside(task, is_offered=True) if fact.is_offered else task.inside,
    )


def _fold_claimed(task: Task, fact: f.TaskClaimed, at: int) -> Task:
    return replace(
        task,
        status=s.RUNNING,
        attempt_id=fact.attempt_id,
        session_id=fact.session_id,
        progress_by=fact.progress_by,
        ring_at=None,
        dispatch_by=None,
        redelivery=None,
        inside=_inside_after_claim(task, fact),
        started_at=task.started_at or at,
    )


def _inside_after_claim(task: Task, fact: f.TaskClaimed) -> str | None:
    """A new attempt has begun no step yet; the first attempt that records a step fixes the version."""
    if task.inside is None and fact.agent_version is None:
        return None
    known = inside_of(task)
    return changed_inside(task, version=known.version if known.steps else fact.agent_version, doing=())


def _fold_step_started(task: Task, fact: f.StepStarted, at: int) -> Task:
    doing = (*_other_steps(task, fact.step), (fact.step, fact.progress_by))
    return replace(task, progress_by=fact.progress_by, inside=changed_inside(task, doing=doing))


def _other_steps(task: Task, step: str) -> tuple[tuple[str, int], ...]:
    return tuple(other for other in inside_of(task).doing if other[0] != step)


def _fold_step_recorded(task: Task, fact: f.StepRecorded, at: int) -> Task:
    inside = inside_of(task)
    steps = inside.steps + (fact.card is not None)
    doing = tuple(other for other in inside.doing if other[0] != fact.step) if inside.doing else ()
    packed = packed_inside(replace(inside, steps=steps, doing=doing))
    return replace(task, progress_by=fact.progress_by, inside=packed)


def _fold_draft_kept(task: Task, fact: f.DraftKept, at: int) -> Task:
    inside = changed_inside(task, draft=fact.card, draft_hash=fact.card_hash)
    return replace(task, progress_by=fact.progress_by, inside=inside)


def _fold_effect_intended(task: Task, fact: f.EffectIntended, at: int) -> Task:
    intents = (*_other_intents(task, fact.key), fact.key)
    doing = (*_other_steps(task, fact.step), (fact.step, fact.progress_by))
    inside = changed_inside(task, intents=intents, doing=doing)
    return replace(task, progress_by=fact.progress_by, inside=inside)


def _fold_effect_over(task: Task, fact: f.EffectDone | f.EffectDoubted | f.EffectSettled, at: int) -> Task:
    return replace(task, inside=changed_inside(task, intents=_other_intents(task, fact.key)))


def _other_intents(task: Task, key: str) -> tuple[str, ...]:
    return tuple(other for other in inside_of(task).intents if other != key)


def _fold_nudged(task: Task, fact: f.TaskNudged, at: int) -> Task:
    return replace(task, progress_by=fact.progress_by, inside=changed_inside(task, nudges=fact.nudges))


def _fold_handed_back(task: Task, fact: f.TaskHandedBack, at: int) -> Task:
    redelivery: Redelivery = "reclaim" if fact.reason == f.RETURNED else "hand_back"
    return replace(task, status=s.QUEUED, redelivery=redelivery, **RELEASED)


def _fold_reclaimed(task: Task, fact: f.TaskReclaimed, at: int) -> Task:
    return replace(
        task,
        status=s.QUEUED,
        redelivery="hand_back" if fact.cost == "nothing" else "reclaim",
        epoch=fact.epoch,
        crash_count=fact.crash_count,
        crash_times=fact.crash_times,
        guard_at=task.guard_at if task.guard_at is not None else fact.guard_at,
        guard_reason=task.guard_reason or ("crash_limit" if fact.guard_at is not None else None),
        **RELEASED,
    )


def _fold_suspended(task: Task, fact: f.TaskSuspended, at: int) -> Task:
    return replace(
        task,
        status=s.SUSPENDED,
        waits=packed_waits(fact.waits) if fact.count is None else counted_waits(fact.count),
        wait_by=fact.wait_by,
        suspend_by=fact.suspend_by,
        inside=_inside_after_suspension(task, fact),
        **RELEASED,
    )


def _inside_after_suspension(task: Task, fact: f.TaskSuspended) -> str | None:
    """A wait's record is found like a step's, so it is counted like a step."""
    inside = inside_of(task)
    return changed_inside(
        task,
        steps=inside.steps + fact.wait_count,
        children=inside.children + fact.children,
        is_offered=False,
    )


def _fold_wait(task: Task, fact: WaitFact, at: int) -> Task:
    """Fold a wait's fact; of waits with rows of their own the task only counts how many are open."""
    if not has_wait_rows(task):
        return replace(task, waits=packed_waits(evolve_waits(waits_of(task), fact)), wait_by=fact.wait_by)
    is_answer = isinstance(fact, f.WaitAnswered)
    return replace(task, waits=counted_waits(open_waits(task) - is_answer), wait_by=fact.wait_by)


def _fold_resumed(task: Task, fact: f.TaskResumed, at: int) -> Task:
    return replace(
        task,
        status=s.QUEUED,
        redelivery="resume",
        epoch=fact.epoch,
        run_at=fact.run_at,
        wait_by=None,
        suspend_by=None,
        remind_at=None,
    )


def _fold_turn_ended(task: Task, fact: f.TurnEnded, at: int) -> Task:
    """Release the worker and drop what belongs to the turn. `RELEASED` is written out, for speed."""
    if task.inside is not None:
        asked = tuple(a for a in inside_of(task).asked if a.id == task.id)
        task = replace(task, inside=changed_inside(task, asked=asked, is_offered=False))
    return replace(
        task,
        epoch=fact.epoch,
        status=s.QUEUED,
        remind_at=None,
        attempt_id=None,
        session_id=None,
        slot=None,
        ring_at=None,
        dispatch_by=None,
        progress_by=None,
        turn_id=None,
        redelivery=None,
        waits=None,
        wait_by=None,
        suspend_by=None,
    )


def _fold_retry_scheduled(task: Task, fact: f.TaskRetryScheduled, at: int) -> Task:
    return replace(
        task,
        status=s.QUEUED,
        retry_count=fact.retry_count,
        run_at=fact.run_at,
        reason=fact.reason,
        error=f.encode_error(fact.error),
        inside=task.inside if fact.run is None else changed_inside(task, run=fact.run, steps=0),
    )


def _fold_succeeded(task: Task, fact: f.SucceededEnding, at: int) -> Task:
    """End with a result. `_ENDED` is written out, because most tasks end like this."""
    return replace(
        task,
        status=s.SUCCEEDED,
        reason=None,
        error=None,
        deliverable_card=fact.deliverable_card,
        ended_at=at,
        remind_at=None,
        recover_at=None,
        guard_at=None,
        guard_reason=None,
        held_since=None,
    )


def _fold_ending(status: s.Status) -> Callable[[Task, f.Ending, int], Task]:
    def fold(task: Task, fact: f.Ending, at: int) -> Task:
        return replace(
            task,
            status=status,
            reason=fact.reason,
            error=f.encode_error(fact.error) if fact.error else task.error,
            deliverable_card=fact.deliverable_card,
            retry_count=fact.retry_count,
            ended_at=at,
            **_ENDED,
        )

    return fold


def _fold_dead_lettered(task: Task, fact: f.TaskDeadLettered, at: int) -> Task:
    return replace(task, dead_letter="open")


def _fold_replayed(task: Task, fact: f.DeadLetterReplayed, at: int) -> Task:
    """A cancelled task can be replayed too, without being a dead letter."""
    letter = None if task.dead_letter is None else "replayed"
    return replace(task, dead_letter=letter, superseded_by=fact.superseded_by)


def _fold_abandoned(task: Task, fact: f.DeadLetterAbandoned, at: int) -> Task:
    return replace(task, dead_letter="abandoned")


def _fold_nothing(task: Task, fact: f.Fact, at: int) -> Task:
    return task


_FOLDS: Final[dict[type[f.Fact], Callable[[Task, Any, int], Task]]] = {
    f.ApprovalRequested: evolve_holds.fold_approval_requested,
    f.ApprovalReminded: _copy_fields("remind_at"),
    f.ApprovalVoted: evolve_holds.fold_approval_voted,
    f.ApprovalApproved: evolve_holds.fold_approval_approved,
    f.RejectedApproval: evolve_holds.fold_approval_over,
    f.ExpiredApproval: evolve_holds.fold_approval_over,
    f.TaskDispatched: _fold_dispatched,
    f.TaskRang: _copy_fields("ring_at"),
    f.TaskClaimed: _fold_claimed,
    f.TaskHeartbeat: _copy_fields("progress_by"),
    f.StepStarted: _fold_step_started,
    f.StepRecorded: _fold_step_recorded,
    f.DraftKept: _fold_draft_kept,
    f.EffectIntended: _fold_effect_intended,
    f.EffectDone: _fold_effect_over,
    f.EffectDoubted: _fold_effect_over,
    f.EffectSettled: _fold_effect_over,
    f.TaskNudged: _fold_nudged,
    f.TaskHandedBack: _fold_handed_back,
    f.TaskReclaimed: _fold_reclaimed,
    f.TaskSuspended: _fold_suspended,
    f.WaitsAdded: _fold_nothing,
    f.WaitAnswered: _fold_wait,
    f.WaitExpired: _fold_wait,
    f.TaskResumed: _fold_resumed,
    f.TaskReaped: _copy_fields("epoch"),
    f.TurnEnded: _fold_turn_ended,
    f.TaskRetryScheduled: _fold_retry_scheduled,
    f.TaskRushed: _copy_fields("run_at"),
    f.TaskBlocked: evolve_holds.fold_blocked,
    f.TaskReminded: evolve_holds.fold_reminded,
    f.TaskUnblocked: evolve_holds.fold_unblocked,
    f.TaskAssigned: evolve_holds.fold_assigned,
    f.SucceededEnding: _fold_succeeded,
    f.FailedEnding: _fold_ending(s.FAILED),
    f.TimedOutEnding: _fold_ending(s.TIMEOUT),
    f.CancelledEnding: _fold_ending(s.CANCELLED),
    f.TaskDeadLettered: _fold_dead_lettered,
    f.DeadLetterReplayed: _fold_replayed,
    f.DeadLetterAbandoned: _fold_abandoned,
    f.TaskOrphaned: _copy_fields("owner"),
    f.InboxSkipped: _fold_nothing,
    f.WriteRefused: _fold_nothing,
}
