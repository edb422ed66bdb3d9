"""Approvals: who may decide, on what exactly, and how many must agree. Each is decided once.

The approval before a task starts has the task's id; the approval of a suspended turn has its call's id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from endwell import errors as e
from endwell.machine import endings
from endwell.machine.decision import Decision, Evidence, refuse
from endwell.machine.wait_settlement import known_waits, record_answer, settle
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.approval import OpenApproval
from endwell.model.inside import inside_of
from endwell.model.moments import SECOND
from endwell.model.names import same_person
from endwell.model.task import Task
from endwell.policy.approval import Guard, strictest_rule
from endwell.policy.limits import Limits


def request_before_start(
    command: c.Submit, created: f.TaskCreated, now: int, limits: Limits, registered: Sequence[Guard]
) -> tuple[f.Fact, ...]:
    """Request the approval that a new task needs; a replay's earlier approval may count again.

    The strictest of the submitter's rule and the rules that workers have registered for the agent applies.
    """
    rule = strictest_rule(_submitted_rule(command), *registered)
    if rule is None:
        return ()
    requested = _approval_request(rule, now, limits, ends_by=created.ends_by, shown_hash=command.payload_hash)
    if not isinstance(command, c.Resubmit) or command.approved_by is None:
        return (requested,)
    if (command.approved_hash, command.approved_rule) != (command.payload_hash, (rule.by, rule.quorum)):
        return (requested,)
    carried = f.ApprovalApproved(
        by=command.approved_by, run_at=created.run_at, carried_from=command.replay_of
    )
    return (requested, carried)


def request_before_claim(task: Task, now: int, limits: Limits, seen: Evidence) -> Decision | None:
    """Request an approval for a task that was submitted before a worker registered a rule for its agent.

    The claim of a dispatched turn is refused instead: the turn's own clock ends the offer.
    """
    if task.started_at is not None or seen.approval is not None or not seen.rules:
        return None
    rule = strictest_rule(*seen.rules)
    if rule is None or task.status != s.QUEUED:
        return refuse(not_approved(task))
    asked = _approval_request(rule, now, limits, ends_by=task.ends_by, shown_hash=task.payload_hash)
    return Decision(facts=(asked,))


def not_approved(task: Task) -> e.WrongStatus:
    """The refusal of a claim whose task needs an approval first."""
    why = f"a person must agree before task {task.id} may start"
    return e.WrongStatus(why, code="approval_needed", task_id=task.id)


def _approval_request(
    rule: Guard, now: int, limits: Limits, *, ends_by: int, shown_hash: str
) -> f.ApprovalRequested:
    return f.ApprovalRequested(
        remind_at=now + limits.remind_every,
        expire_at=min(now + int((rule.within_seconds or 0) * SECOND), ends_by),
        shown_hash=shown_hash,
        by=rule.by,
        quorum=rule.quorum,
    )


def _submitted_rule(command: c.Submit) -> Guard | None:
    within = command.approval_within
    if within is None:
        return None
    return Guard(by=command.approval_by, within_seconds=within / SECOND, quorum=command.approval_quorum)


def previous_approval(task: Task, seen: Evidence) -> dict[str, Any]:
    """What a replay takes over from the approval of the task that it replays.

    A rule registered now replaces the old one; without any, the old one applies.
    """
    if task.expire_at is not None:  # never approved
        old = next((one for one in inside_of(task).asked if one.id == task.id), OpenApproval(task.id, ""))
        return _old_rule(seen, task.expire_at - task.created_at, old.by, old.quorum)
    row = seen.approval
    if row is None or row.decision != "approved":
        return {}
    by = tuple(row.approvers.split(",")) if row.approvers else ()
    return {
        **_old_rule(seen, row.expire_at - row.created_at, by, row.quorum),
        "approved_by": row.decided_by,
        "approved_hash": row.shown_hash,
        "approved_rule": (by, row.quorum),
    }


def _old_rule(seen: Evidence, within: int, by: tuple[str, ...], quorum: int) -> dict[str, Any]:
    if seen.rules:
        return {}
    return {"approval_within": max(within, 0), "approval_by": by, "approval_quorum": quorum}


def requested_by_calls(task: Task, calls: tuple[c.Call, ...], now: int, limits: Limits) -> tuple[f.Fact, ...]:
    """Request the approvals that a suspending turn waits for."""
    remind_at = now + limits.remind_every
    return tuple(
        f.ApprovalRequested(
            id=call.tool_call_id,
            remind_at=remind_at,
            expire_at=now + call.within,
            shown_hash=call.content_hash,
            question=call.name,
            by=call.by,
            quorum=call.quorum,
        )
        for call in calls
        if call.kind == "approval"
    )


def approve(task: Task, command: c.Approve, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Count one vote; the last vote needed starts the task, or resumes the turn."""
    open_one = _open_to(task, command, now, seen)
    if not isinstance(open_one, OpenApproval):
        return refuse(open_one)
    own_id = None if open_one.id == task.id else open_one.id
    if len(open_one.votes) + 1 < open_one.quorum:
        return Decision(facts=(f.ApprovalVoted(by=command.actor, id=own_id),))
    agreed = (*open_one.votes, command.actor)
    approved = f.ApprovalApproved(by=", ".join(agreed), run_at=max(now, task.run_at), id=own_id)
    if own_id is None:
        return Decision(facts=(approved,))
    return _settle_wait(task, approved, own_id, now, seen, status="approved", by=list(agreed))


def reject(task: Task, command: c.Reject, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Reject: one rejection is enough."""
    open_one = _open_to(task, command, now, seen)
    if not isinstance(open_one, OpenApproval):
        return refuse(open_one)
    if open_one.id == task.id:
        rejected = f.RejectedApproval(by=command.actor)
        return endings.end(task, now, s.FAILED, "approval_rejected", dead_letter=False, before=(rejected,))
    rejected = f.RejectedApproval(by=command.actor, id=open_one.id)
    return _settle_wait(task, rejected, open_one.id, now, seen, status="rejected", by=[command.actor])


def _settle_wait(
    task: Task, fact: f.Fact, approval_id: str, now: int, seen: Evidence, *, status: str, by: list[str]
) -> Decision:
    shown = next(one.shown_hash for one in inside_of(task).asked if one.id == approval_id)
    answer = record_answer(task, approval_id, now, status=status, by=by, shown_hash=shown)
    waits, rest = known_waits(task, seen)
    settled = settle(task, waits, now, {approval_id: answer}, rest)
    return replace(settled, facts=(fact, *settled.facts))


def _open_to(task: Task, command: c.Approve | c.Reject, now: int, seen: Evidence) -> OpenApproval | e.Refused:
    """The approval that the command decides, or why it may not decide it."""
    open_one = _open_approval(task, command.approval_id, seen)
    if open_one is None:
        why = f"there is no open approval {command.approval_id or task.id}"
        return e.WrongStatus(why, code="approval_not_open", task_id=task.id)
    return _refuse_voter(open_one, command) or _refuse_late(task, open_one, now, seen) or open_one


def _open_approval(task: Task, approval_id: str | None, seen: Evidence) -> OpenApproval | None:
    """The open approval; one of a turn only while the turn waits for it, as blocking drops its waits."""
    wanted = approval_id or task.id
    if wanted != task.id and _decision_deadline(task, wanted, seen) is None:
        return None
    return next((one for one in inside_of(task).asked if one.id == wanted), None)


def _decision_deadline(task: Task, approval_id: str, seen: Evidence) -> int | None:
    """Until when a decision on the approval counts."""
    if approval_id == task.id:
        return task.expire_at
    waits, _ = known_waits(task, seen)
    return next((w.deadline for w in waits if w.tool_call_id == approval_id and w.is_open), None)


def _refuse_voter(open_one: OpenApproval, command: c.Approve | c.Reject) -> e.Refused | None:
    if open_one.by and command.actor not in open_one.by:
        who = ", ".join(open_one.by)
        why = f"{command.actor} may not decide on this; {who} may"
        return e.Refused(why, code="not_an_approver", field="as")
    if same_person(command.actor) in map(same_person, open_one.votes):
        return e.WrongStatus(f"{command.actor} has already agreed", code="already_voted")
    if isinstance(command, c.Approve) and command.shown_hash not in (None, open_one.shown_hash):
        why = "what is to be approved has changed since it was shown"
        return e.Refused(why, code="approval_changed", hint="look at it again, then decide")
    return None


def _refuse_late(task: Task, open_one: OpenApproval, now: int, seen: Evidence) -> e.WrongStatus | None:
    """Refuse a late decision, even if no supervisor has expired the approval yet."""
    deadline = _decision_deadline(task, open_one.id, seen)
    if deadline is None or now < deadline:
        return None
    return e.WrongStatus("the time for this decision is over", code="approval_expired", task_id=task.id)
