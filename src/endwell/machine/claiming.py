"""How a turn is offered, claimed, handed back and reclaimed.

An offer is named by its turn and epoch, which no other offer of the task ever has. Both follow from the
task's row, so an offer can be published before its dispatch is written: the claim that names it is granted
once, and only while the task has not moved.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from msgspec.structs import replace

from endwell import errors as e
from endwell.machine.approvals import request_before_claim
from endwell.machine.clocks import due
from endwell.machine.decision import Decision, Evidence, refuse, refuse_status
from endwell.machine.steps import progress_deadline
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.inside import deliveries_along, inside_of
from endwell.model.session import END_REASONS
from endwell.model.task import Task
from endwell.policy.guard import Cost, cost_of_reclaim, count_crash, is_runaway, is_suspect
from endwell.policy.limits import Limits


class WaitingTask(Protocol):
    """The part of a task's row that names its next offer."""

    @property
    def id(self) -> str: ...
    @property
    def turn_id(self) -> str | None: ...
    @property
    def turn_number(self) -> int: ...
    @property
    def epoch(self) -> int: ...


class OfferName(NamedTuple):
    """The turn of an offer, with its number and epoch."""

    turn_id: str
    number: int
    epoch: int

    @property
    def key(self) -> tuple[str, int]:
        """Turn and epoch, which name the offer."""
        return self.turn_id, self.epoch


def next_turn(task: WaitingTask) -> OfferName:
    """Name the next offer of a queued task: a turn that continues keeps its id, in a new epoch."""
    if task.turn_id is not None:
        return OfferName(task.turn_id, task.turn_number, task.epoch + 1)
    number = task.turn_number + 1
    return OfferName(f"{task.id}.t{number}", number, task.epoch + 1)


def offered_turn(task: Task) -> OfferName | None:
    """Name the offer that can be claimed now, as it was or would be dispatched; None if there is none."""
    if task.status == s.DISPATCHED:
        return OfferName(task.turn_id or "", task.turn_number, task.epoch)
    return next_turn(task) if task.status == s.QUEUED else None


def is_grant_valid(task: Task | None, turn_id: str, epoch: int, attempt_id: str) -> bool:
    """Whether the attempt that a grant names still holds that turn."""
    return task is not None and (task.turn_id, task.epoch, task.attempt_id) == (turn_id, epoch, attempt_id)


def dispatch(task: Task, command: c.Dispatch, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Offer a queued task to workers."""
    blocker = _not_deliverable(task, now, seen) or request_before_claim(task, now, limits, seen)
    if blocker is not None:
        return blocker
    offered = replace(
        _dispatch_fact(task, command.slot, now, limits),
        ring_at=None if limits.ring_after is None else now + limits.ring_after,
        dispatch_by=None if limits.dispatch_timeout is None else now + limits.dispatch_timeout,
        is_offered=not command.is_streamed,
    )
    return Decision(facts=(offered,))


def claim(task: Task, command: c.Claim, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Give the turn to a new attempt. A queued task is dispatched and claimed in one commit."""
    if not seen.session_is_live:
        return refuse(e.StaleAttempt(f"session {command.session_id} has lost its lease", task_id=task.id))
    blocker = (
        _refuse_old_offer(task, command)
        or _refuse_unserved(task, command)
        or _refuse_suspect(task, command, limits)
        or _not_deliverable(task, now, seen)
        or request_before_claim(task, now, limits, seen)
    )
    if blocker is not None:
        return blocker
    claimed = f.TaskClaimed(
        attempt_id=command.attempt_id,
        session_id=command.session_id,
        progress_by=progress_deadline(task, now, limits),
        agent_version=command.agent_version,
    )
    if task.status == s.DISPATCHED:
        return Decision(facts=(claimed,))
    return Decision(facts=(_dispatch_fact(task, command.slot, now, limits), claimed))


def _refuse_old_offer(task: Task, command: c.Claim) -> Decision | None:
    """Refuse a claim that names an offer, if the task's offer is another one now."""
    if command.turn_id is None:
        return None
    turn = offered_turn(task)
    if turn is not None and turn.key == (command.turn_id, command.epoch):
        return None
    why = f"turn {command.turn_id} of epoch {command.epoch} is not on offer any more"
    return refuse_status(task, why, code="stale_offer")


def _refuse_unserved(task: Task, command: c.Claim) -> Decision | None:
    """Refuse a claim by a worker that serves neither the task's agent nor, where it counts, its version."""
    if command.agents is not None and task.agent not in command.agents:
        why = f"task {task.id} is for {task.agent}, which this worker does not serve"
        return refuse_status(task, why, code="other_agent")
    inside = inside_of(task)
    if not inside.steps or (inside.version or "") not in command.served_elsewhere:
        return None
    why = f"version {inside.version or 'without a name'} of {task.agent} is served by another worker"
    return refuse_status(task, why, code="other_version")


def _refuse_suspect(task: Task, command: c.Claim, limits: Limits) -> Decision | None:
    """Refuse a task close to its crash limit to a worker that holds another such task."""
    if command.may_take_suspect or not is_suspect(task.crash_count, limits.crash_limit):
        return None
    why = f"one more crash would end task {task.id}, and this worker holds another such task"
    return refuse_status(task, why, code="suspect_is_held")


def _not_deliverable(task: Task, now: int, seen: Evidence) -> Decision | None:
    """Refuse a task that may not start yet, whose agent key is held, or that is about to end."""
    if task.run_at > now:
        return refuse_status(task, f"task {task.id} is not to start yet", code="too_early")
    if seen.key_holder is not None and seen.key_holder != task.id:
        why = f"{task.agent}/{task.agent_key} is busy with task {seen.key_holder}"
        return refuse_status(task, why, code="key_is_held")
    rule = due(task, now) if task.clock_at is None or task.clock_at <= now else None
    if rule is not None and rule.name in ("ends_by", "guard"):
        why = f"task {task.id} is about to be ended: {task.clock_rule}"
        return refuse_status(task, why, code="clock_is_due")
    return None


def _dispatch_fact(task: Task, slot: int | None, now: int, limits: Limits) -> f.TaskDispatched:
    """The fact of a dispatch, with its count: resumes and hand-backs are free, a redelivered reclaim is not.

    The runaway guard continues the count of the tasks that led to this one, because a loop may make a new
    task each time round. A task that reaches the limit with its first delivery is not delivered at all.
    """
    is_free = task.redelivery in ("resume", "hand_back")
    count = task.dispatch_count + (0 if is_free else 1)
    along = count + deliveries_along(task) - task.dispatch_count
    turn_id, number, epoch = next_turn(task)
    return f.TaskDispatched(
        turn_id=turn_id,
        turn_number=number,
        dispatch_count=count,
        epoch=epoch,
        slot=slot,
        guard_at=now if is_runaway(along, limits.runaway_limit) else None,
    )


def hand_back(task: Task, command: c.HandBack, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Queue the turn again; the worker gives it back unharmed."""
    return Decision(facts=(f.TaskHandedBack(attempt_id=command.attempt_id, reason=command.reason),))


def reclaim(task: Task, command: c.Reclaim, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Queue the same turn for a new attempt. At the crash limit this only sets a clock, for the PMO."""
    if command.attempt_id != task.attempt_id:
        return refuse_status(task, f"task {task.id} is held by a newer attempt")
    if seen.session_is_live and command.reason == "lease_lapsed":
        return refuse_status(task, "the holder's lease has not lapsed", code="lease_holds")
    if _is_too_late(command, now):
        why = "the reclaim waited for the store for too long; the holder may have waited as well"
        return refuse_status(task, why, code="decided_too_late")
    cost = _reclaim_cost(command, seen)
    crashes, times = task.crash_count, task.crash_times or ""
    if cost == "crash":
        crashes, times = count_crash(task.crash_times, now, limits.crash_window)
    reclaimed = f.TaskReclaimed(
        attempt_id=command.attempt_id,
        session_id=task.session_id or "",
        by=command.actor,
        reason=command.reason,
        epoch=task.epoch + 1,
        crash_count=crashes,
        crash_times=times,
        guard_at=now if cost == "crash" and crashes >= limits.crash_limit else None,
        cost=cost,
        old_consumer=command.old_consumer,
        new_consumer=command.new_consumer,
        message_id=command.message_id,
    )
    return Decision(facts=(reclaimed,))


def _is_too_late(command: c.Reclaim, now: int) -> bool:
    """Whether the supervisor has had no answer from the store for too long when the store decides."""
    known = command.evidence
    if known is None or known.seen_at is None or known.longest_gap is None:
        return False
    return now - known.seen_at > known.longest_gap


def _reclaim_cost(command: c.Reclaim, seen: Evidence) -> Cost:
    session, known = seen.session, command.evidence or c.HolderEvidence()
    is_alive = True if command.reason == "forgotten_by_its_worker" else known.holder_is_alive
    return cost_of_reclaim(
        is_alive=is_alive,
        watched_since=known.watched_since,
        lapsed_at=None if session is None else session.lease_until,
        has_left=session is not None and session.end_reason in END_REASONS,
    )
