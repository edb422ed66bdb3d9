"""Suspension: a turn lets go of its worker; each wait has its own deadline; the first answer counts."""

from __future__ import annotations

from msgspec.structs import replace

from endwell import errors as e
from endwell.machine.decision import NOTHING, Decision, Seen, refuse
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.task import Task, Wait, waits_of
from endwell.policy.limits import Limits


def suspend(task: Task, command: c.Suspend, now: int, limits: Limits, seen: Seen) -> Decision:
    """`ends_by` cuts every wait; the cap after the last one is the final net."""
    if not command.waits:
        return refuse(e.BadInput("a turn cannot suspend without waiting for something", code="no_waits"))
    waits = tuple(replace(wait, deadline=min(wait.deadline, task.ends_by)) for wait in command.waits)
    cap = max(wait.deadline for wait in waits) + limits.suspend_grace
    first = min(wait.deadline for wait in waits)
    return Decision(facts=(f.TaskSuspended(waits=waits, wait_by=first, suspend_by=cap),))


def answer(task: Task, command: c.Answer, now: int, limits: Limits, seen: Seen) -> Decision:
    """The first answer applies; a second one moves nothing."""
    waits = waits_of(task)
    if not any(w.tool_call_id == command.tool_call_id for w in waits):
        why = f"task {task.id} does not wait for {command.tool_call_id}"
        return refuse(e.WrongStatus(why, code="not_waiting", task_id=task.id))
    return settle(task, now, {command.tool_call_id}, "received", command.result_card)


def expire(task: Task, now: int, *, all_of_them: bool) -> Decision:
    """Overdue waits end as expired; their siblings keep their own deadlines."""
    overdue = {w.tool_call_id for w in waits_of(task) if all_of_them or w.deadline <= now}
    return settle(task, now, overdue, "expired", None)


def settle(task: Task, now: int, ids: set[str], wait_status: str, card: str | None) -> Decision:
    """Mark these waits, and queue the turn again when nothing is waited for any more."""
    open_waits = [w for w in waits_of(task) if w.wait_status == "waiting"]
    left = [w for w in open_waits if w.tool_call_id not in ids]
    wait_by = min((w.deadline for w in left), default=None)
    settled = tuple(_answered(w, wait_status, card, wait_by) for w in open_waits if w.tool_call_id in ids)
    if not settled:
        return NOTHING
    resumed = () if left else (f.TaskResumed(epoch=task.epoch + 1, run_at=now),)
    return Decision(facts=(*settled, *resumed))


def _answered(wait: Wait, wait_status: str, card: str | None, wait_by: int | None) -> f.WaitAnswered:
    return f.WaitAnswered(
        tool_call_id=wait.tool_call_id, wait_status=wait_status, result_card=card, wait_by=wait_by
    )
