"""Approvals: who decides, on what, how many, and until when. Rules for every step."""

from __future__ import annotations

from typing import Final

from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.approval import OpenApproval
from endwell.model.inside import inside_of
from tests.machine.walk.step import Step
from tests.machine.walk.violation import must

DECIDED: Final = (f.ApprovalApproved, f.RejectedApproval, f.ExpiredApproval)
VOICES: Final = (f.ApprovalVoted, f.ApprovalApproved, f.RejectedApproval)


def an_approval_is_decided_once_and_in_time(step: Step) -> None:
    decided = [fact.id or step.before.id for fact in step.decision.facts if isinstance(fact, DECIDED)]
    must(len(decided) == len(set(decided)), "an approval was decided twice")
    for fact in step.decision.facts:
        if isinstance(fact, VOICES):
            must(step.now < _deadline(step, fact.id), "an approval was decided after it had expired")
            _check_voice(step, fact)
        if isinstance(fact, f.ExpiredApproval):
            must(step.now >= _deadline(step, fact.id), "an approval expired before its time")
            must(isinstance(step.command, c.ClockFired | c.InjectTimeout), "expired by something else")


def _deadline(step: Step, approval_id: str | None) -> int:
    if approval_id is None:
        return step.before.expire_at or 0
    waits = step.scene_before.waits
    return next((w.deadline for w in waits if w.tool_call_id == approval_id and w.is_open), 0)


def _check_voice(step: Step, fact: f.Fact) -> None:
    must(isinstance(step.command, c.Approve | c.Reject), "an approval was decided by another command")
    if not isinstance(step.command, c.Approve | c.Reject):
        return
    open_one = _asked(step, step.command.approval_id)
    must(open_one is not None, "a decision on an approval that is not open")
    if open_one is None:
        return
    who = step.command.actor
    must(not open_one.by or who in open_one.by, "a person decided who may not")
    must(who not in open_one.votes, "one voice counted twice")
    if isinstance(step.command, c.Approve):
        must(step.command.shown_hash in (None, open_one.shown_hash), "approved what was not shown")
        enough = len({*open_one.votes, who}) >= open_one.quorum
        must(isinstance(fact, f.ApprovalApproved) == enough, "approved by too few, or not by enough")
    else:
        must(isinstance(fact, f.RejectedApproval), "a no that is none")


def _asked(step: Step, approval_id: str | None) -> OpenApproval | None:
    wanted = approval_id or step.before.id
    return next((one for one in inside_of(step.before).asked if one.id == wanted), None)


def a_decision_lets_its_turn_go_on(step: Step) -> None:
    """Inside a turn each decision is at once the answer that the turn waits for."""
    decided = [fact.id for fact in step.decision.facts if isinstance(fact, DECIDED) and fact.id is not None]
    answered = {fact.tool_call_id for fact in step.decision.facts if isinstance(fact, f.WaitAnswered)}
    must(set(decided) <= answered, "a decision that the turn never hears of")
    cards = {card.id for card in step.decision.cards}
    must(set(decided) <= cards, "a decision without its record")
