"""Counters and deadlines: rules for every step."""

from __future__ import annotations

from typing import Final

from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.facts import RETURNED
from endwell.model.inside import inside_of
from tests.machine.walk.invariants import check_clock, max_retries
from tests.machine.walk.step import Step
from tests.machine.walk.violation import must

FAILING_RULES: Final = ("reap", "dispatch_timeout", "suspend_cap")
DONE_BY_RULE: Final[dict[str, tuple[type[f.Fact], ...]]] = {
    "reap": (f.TurnEnded,),
    "dispatch_timeout": (f.TurnEnded,),
    "suspend_cap": (f.TurnEnded,),
    "inject_timeout": (f.WaitAnswered, f.WaitExpired),
    "recover": (f.TaskUnblocked,),
    "approval_remind": (f.ApprovalReminded,),
    "remind": (f.TaskReminded,),
    "ring_again": (f.TaskRang,),
}


def the_clock_is_set_again(step: Step) -> None:
    check_clock(step.after)


def a_worker_that_stays_returns_no_turn_for_free(step: Step) -> None:
    if isinstance(step.command, c.HandBack) and step.moves:
        stays = step.command.reason == RETURNED
        must(step.after.redelivery == ("reclaim" if stays else "hand_back"), "a hand-back counts wrongly")


def only_counted_dispatches_count(step: Step) -> None:
    is_free = step.before.redelivery in ("resume", "hand_back")
    rise = step.after.dispatch_count - step.before.dispatch_count
    must(rise == (0 if is_free else step.count(f.TaskDispatched)), f"dispatch_count rose by {rise}")


def _is_spared(step: Step) -> bool:
    """A supervisor that was away gives the time back to who works."""
    is_away = isinstance(step.command, c.ClockFired) and step.command.away > 0
    return step.rule == "reap" and is_away and bool(step.count(f.TaskHeartbeat))


def each_failed_turn_counts_once(step: Step) -> None:
    failed = isinstance(step.command, c.FailTurn) or (step.rule in FAILING_RULES and not _is_spared(step))
    rise = step.after.retry_count - step.before.retry_count
    if step.count(f.TaskUnblocked) and step.before.reason == "dispatch_timeout":
        must(step.after.retry_count == 0, "a task that a person lets go on has no retries")
        return
    must(rise == (failed and step.moves), f"retry_count rose by {rise}")
    if rise:
        is_final = isinstance(step.command, c.FailTurn) and not step.command.error.retryable
        used_up = step.after.retry_count > max_retries(step.before, step.limits)
        if step.rule == "dispatch_timeout":
            is_escalated = step.after.status == "blocked" and step.after.remind_at is not None
            must(
                is_escalated == used_up and not step.after.is_ended, "a person gets it too early or too late"
            )
            must(step.after.held_since is None, "ends_by stands still before a person accepted the task")
        else:
            must(step.after.is_ended == (used_up or is_final), "given up too early or too late")


def each_lost_lease_counts_once(step: Step) -> None:
    if not step.count(f.TaskReclaimed):
        must(step.after.crash_count == step.before.crash_count, "a crash that was none")
        return
    times = [int(at) for at in (step.before.crash_times or "").split(",") if at]
    recent = [at for at in times if at > step.now - step.limits.crash_window]
    must(step.after.crash_count == len(recent) + 1, "crashes within the window miscounted")
    remembered = ",".join(map(str, [*recent, step.now]))
    must(step.after.crash_times == remembered, "a crash within the window was forgotten")


def only_a_hold_moves_ends_by(step: Step) -> None:
    moved = step.after.ends_by - step.before.ends_by
    held = step.before.held_since
    given_back = step.now - held if held is not None and step.count(f.TaskUnblocked) else 0
    must(moved == given_back, f"ends_by moved by {moved}")
    if step.before.expire_at is not None and step.after.expire_at is not None:
        moved = step.after.expire_at - step.before.expire_at
        must(moved == given_back, f"the approval's expiry moved by {moved}")


def only_a_person_starts_it_early(step: Step) -> None:
    is_early = step.after.run_at < step.before.run_at
    is_persons = isinstance(step.command, c.RunNow | c.Unblock | c.SettleEffect)
    must(not is_early or is_persons, "something made the task start before its time")


def a_clock_does_what_is_due_first(step: Step) -> None:
    if not isinstance(step.command, c.ClockFired) or step.before.is_ended:
        return
    done = tuple(type(fact) for fact in step.decision.facts)
    must(step.rule is not None, f"nothing is due and {done} happened")
    if step.rule in ("ends_by", "approval_expire", "guard"):
        is_escalated = step.before.status == "blocked" and step.before.reason == "dispatch_timeout"
        at_its_time = "dispatch_timeout" if is_escalated else "ends_by"
        reason = {"ends_by": at_its_time, "approval_expire": "approval_expired"}
        must(step.after.reason == reason.get(step.rule, step.before.guard_reason), "ended for another reason")
    elif step.rule == "reap" and step.now < (step.before.progress_by or 0) + step.command.away:
        must(step.count(f.TaskHeartbeat) == 1, "reaped for time without a supervisor")
    elif step.rule is not None:
        must(step.count(*DONE_BY_RULE[step.rule]) > 0, f"{step.rule} is due and {done} happened")


def an_agent_is_nudged_before_it_is_stopped(step: Step) -> None:
    nudged = inside_of(step.before).nudges
    rise = inside_of(step.after).nudges - nudged
    must(step.after.is_ended or rise == step.count(f.TaskNudged), "a nudge that was not counted")
    if step.count(f.TaskNudged):
        must(len(step.decision.messages) == len(step.decision.cards) == 1, "a nudge that cannot be read")
    if step.ends_the_task and step.after.reason == "no_progress":
        must(nudged > 0, "stopped without a nudge")
        must(isinstance(step.command, c.Repeat | c.Progress), "stopped without a report of repeats")


def no_rule_resets_a_later_ones_deadline(step: Step) -> None:
    if step.count(f.TaskRang, f.TaskHeartbeat, f.ApprovalReminded, f.TaskReminded, f.WaitExpired):
        kept = ("dispatch_by", "expire_at", "ends_by", "guard_at", "recover_at", "suspend_by")
        same = all(getattr(step.after, name) == getattr(step.before, name) for name in kept)
        must(same, "a small rule moved a deadline that a later one depends on")
