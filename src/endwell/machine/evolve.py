"""evolve(task, fact) -> task: what each fact does to a task. Pure, total, and the only fold there is.

Store, explorer and rebuild tool all use this one function; live state is the fold of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from endwell.machine.clocks import arm
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.task import ErrorInfo, Task, packed_waits, waits_of

# what a task lets go of when no worker is to hold or expect it any more
_LET_GO: Final[dict[str, Any]] = {
    "attempt_id": None,
    "session_id": None,
    "slot": None,
    "ring_at": None,
    "dispatch_by": None,
    "progress_by": None,
}
# what a turn takes with it when it ends
_TURN_OVER: Final[dict[str, Any]] = {
    **_LET_GO,
    "turn_id": None,
    "redelivery": None,
    "waits": None,
    "wait_by": None,
    "suspend_by": None,
}
# what nobody waits for once the task is over; its turn, if it had one, ended a fact before.
# An `expire_at` that stays says that it was never approved
_ENDED: Final[dict[str, Any]] = {
    "remind_at": None,
    "recover_at": None,
    "guard_at": None,
    "guard_reason": None,
    "held_since": None,
}


def evolve(task: Task | None, fact: f.Fact, at: int, *, namespace: str = "", task_id: str = "") -> Task:
    """The task after the fact. A creation starts from nothing and is told whose it is."""
    after = fold(task, fact, at, namespace=namespace, task_id=task_id)
    return stamp(after, after.version + 1, at, after.head_hash)


def fold(task: Task | None, fact: f.Fact, at: int, *, namespace: str, task_id: str) -> Task:
    """The same without the stamp: enough between two facts of one commit."""
    if task is not None:
        return _FOLDS[type(fact)](task, fact, at)
    if not isinstance(fact, f.TaskCreated):
        raise ValueError(f"{fact.type} of a task that was never created")
    return _created(fact, at, namespace, task_id)


def stamp(task: Task, version: int, at: int, head_hash: bytes) -> Task:
    """Set version, time and clock after one or more facts."""
    clock_at, clock_rule = arm(task)
    return replace(
        task, version=version, updated_at=at, clock_at=clock_at, clock_rule=clock_rule, head_hash=head_hash
    )


def _created(fact: f.TaskCreated, at: int, namespace: str, task_id: str) -> Task:
    return Task(
        namespace=namespace,
        id=task_id,
        agent=fact.agent,
        agent_key=fact.agent_key,
        idempotency_key=fact.key or task_id,
        channel=fact.channel,
        fair_key=fact.fair_key,
        agent_version=fact.agent_version,
        trace=fact.trace,
        parent_id=fact.parent_id,
        replay_of=fact.replay_of,
        payload_card=fact.payload_card,
        payload_hash=fact.payload_hash,
        priority=fact.priority,
        retry_policy=fact.retry_policy,
        created_at=at,
        status=s.QUEUED,
        owner=fact.owner,
        run_at=fact.run_at,
        ends_by=fact.ends_by,
    )


def _approval_requested(task: Task, fact: f.ApprovalRequested, at: int) -> Task:
    return replace(task, status=s.WAITING_APPROVAL, remind_at=fact.remind_at, expire_at=fact.expire_at)


def _approval_approved(task: Task, fact: f.ApprovalApproved, at: int) -> Task:
    return replace(task, status=s.QUEUED, run_at=fact.run_at, remind_at=None, expire_at=None)


def _reminded(task: Task, fact: f.ApprovalReminded | f.TaskReminded, at: int) -> Task:
    return replace(task, remind_at=fact.remind_at)


def _dispatched(task: Task, fact: f.TaskDispatched, at: int) -> Task:
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
    )


def _rang(task: Task, fact: f.TaskRang, at: int) -> Task:
    return replace(task, ring_at=fact.ring_at)


def _claimed(task: Task, fact: f.TaskClaimed, at: int) -> Task:
    return replace(
        task,
        status=s.RUNNING,
        attempt_id=fact.attempt_id,
        session_id=fact.session_id,
        progress_by=fact.progress_by,
        ring_at=None,
        dispatch_by=None,
        redelivery=None,
        started_at=task.started_at or at,
    )


def _heartbeat(task: Task, fact: f.TaskHeartbeat, at: int) -> Task:
    return replace(task, progress_by=fact.progress_by)


def _handed_back(task: Task, fact: f.TaskHandedBack, at: int) -> Task:
    return replace(task, status=s.QUEUED, redelivery="hand_back", **_LET_GO)


def _reclaimed(task: Task, fact: f.TaskReclaimed, at: int) -> Task:
    return replace(
        task,
        status=s.QUEUED,
        redelivery="reclaim",
        epoch=fact.epoch,
        crash_count=fact.crash_count,
        crash_times=fact.crash_times,
        guard_at=task.guard_at if task.guard_at is not None else fact.guard_at,
        guard_reason=task.guard_reason or ("crash_limit" if fact.guard_at is not None else None),
        **_LET_GO,
    )


def _suspended(task: Task, fact: f.TaskSuspended, at: int) -> Task:
    return replace(
        task,
        status=s.SUSPENDED,
        waits=packed_waits(fact.waits),
        wait_by=fact.wait_by,
        suspend_by=fact.suspend_by,
        **_LET_GO,
    )


def _wait_answered(task: Task, fact: f.WaitAnswered, at: int) -> Task:
    waits = tuple(
        replace(wait, wait_status=fact.wait_status, result_card=fact.result_card)
        if wait.tool_call_id == fact.tool_call_id
        else wait
        for wait in waits_of(task)
    )
    return replace(task, waits=packed_waits(waits), wait_by=fact.wait_by)


def _resumed(task: Task, fact: f.TaskResumed, at: int) -> Task:
    return replace(
        task,
        status=s.QUEUED,
        redelivery="resume",
        epoch=fact.epoch,
        run_at=fact.run_at,
        wait_by=None,
        suspend_by=None,
    )


def _reaped(task: Task, fact: f.TaskReaped, at: int) -> Task:
    return replace(task, epoch=fact.epoch)


def _turn_ended(task: Task, fact: f.TurnEnded, at: int) -> Task:
    return replace(task, epoch=fact.epoch, status=s.QUEUED, **_TURN_OVER)


def _retry_scheduled(task: Task, fact: f.TaskRetryScheduled, at: int) -> Task:
    return replace(
        task,
        status=s.QUEUED,
        retry_count=fact.retry_count,
        run_at=fact.run_at,
        reason=fact.reason,
        error=_packed(fact.error),
    )


def _rushed(task: Task, fact: f.TaskRushed, at: int) -> Task:
    return replace(task, run_at=fact.run_at)


def _blocked(task: Task, fact: f.TaskBlocked, at: int) -> Task:
    return replace(
        task,
        status=s.BLOCKED,
        reason=fact.reason,
        owner=fact.owner or task.owner,
        held_since=at if fact.remind_at is not None else None,
        wait_by=None,
        suspend_by=None,
        remind_at=fact.remind_at,
        recover_at=fact.recover_at,
        **_LET_GO,
    )


def _unblocked(task: Task, fact: f.TaskUnblocked, at: int) -> Task:
    return replace(
        task,
        status=s.QUEUED,
        reason=None,
        run_at=fact.run_at,
        ends_by=fact.ends_by,
        held_since=None,
        remind_at=None,
        recover_at=None,
    )


def _succeeded(task: Task, fact: f.TaskSucceeded, at: int) -> Task:
    return replace(
        task,
        status=s.SUCCEEDED,
        reason=None,
        error=None,
        deliverable_card=fact.deliverable_card,
        ended_at=at,
        **_ENDED,
    )


def _ended_as(status: s.Status) -> Callable[[Task, f.Ending, int], Task]:
    def fold(task: Task, fact: f.Ending, at: int) -> Task:
        return replace(
            task,
            status=status,
            reason=fact.reason,
            error=_packed(fact.error) if fact.error else task.error,
            deliverable_card=fact.deliverable_card,
            retry_count=fact.retry_count,
            ended_at=at,
            **_ENDED,
        )

    return fold


def _dead_lettered(task: Task, fact: f.TaskDeadLettered, at: int) -> Task:
    return replace(task, dead_letter="open")


def _replayed(task: Task, fact: f.DeadLetterReplayed, at: int) -> Task:
    """A cancelled task can be tried again too; that does not make it a dead letter."""
    letter = None if task.dead_letter is None else "replayed"
    return replace(task, dead_letter=letter, superseded_by=fact.superseded_by)


def _abandoned(task: Task, fact: f.DeadLetterAbandoned, at: int) -> Task:
    return replace(task, dead_letter="abandoned")


def _nothing_moves(task: Task, fact: f.Fact, at: int) -> Task:
    return task


def _packed(error: ErrorInfo) -> str:
    return f.encode_error(error)


_FOLDS: Final[dict[type[f.Fact], Callable[[Task, Any, int], Task]]] = {
    f.ApprovalRequested: _approval_requested,
    f.ApprovalReminded: _reminded,
    f.ApprovalApproved: _approval_approved,
    f.ApprovalRejected: _nothing_moves,
    f.ApprovalExpired: _nothing_moves,
    f.TaskDispatched: _dispatched,
    f.TaskRang: _rang,
    f.TaskClaimed: _claimed,
    f.TaskHeartbeat: _heartbeat,
    f.TaskHandedBack: _handed_back,
    f.TaskReclaimed: _reclaimed,
    f.TaskSuspended: _suspended,
    f.WaitAnswered: _wait_answered,
    f.TaskResumed: _resumed,
    f.TaskReaped: _reaped,
    f.TurnEnded: _turn_ended,
    f.TaskRetryScheduled: _retry_scheduled,
    f.TaskRushed: _rushed,
    f.TaskBlocked: _blocked,
    f.TaskReminded: _reminded,
    f.TaskUnblocked: _unblocked,
    f.TaskSucceeded: _succeeded,
    f.TaskFailed: _ended_as(s.FAILED),
    f.TaskTimedOut: _ended_as(s.TIMEOUT),
    f.TaskCancelled: _ended_as(s.CANCELLED),
    f.TaskDeadLettered: _dead_lettered,
    f.DeadLetterReplayed: _replayed,
    f.DeadLetterAbandoned: _abandoned,
    f.WriteRefused: _nothing_moves,
}
