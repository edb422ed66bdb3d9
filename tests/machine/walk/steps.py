"""Every rule about a step, in one table, and the way to take a step under it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from endwell import errors as e
from endwell.machine.decision import Decision, Evidence
from endwell.model import commands as c
from endwell.model.card import instruction_id
from endwell.policy.limits import Limits
from tests.machine.walk import rules_of_approval as approval
from tests.machine.walk import rules_of_counting as counting
from tests.machine.walk import rules_of_ownership as ownership
from tests.machine.walk import rules_of_waiting as waiting
from tests.machine.walk import rules_of_work as work
from tests.machine.walk.invariants import check_clock
from tests.machine.walk.scene import Scene, after
from tests.machine.walk.step import ONLY_BY_HOLDER, Step
from tests.machine.walk.violation import must

STEP_RULES: Final[tuple[Callable[[Step], None], ...]] = (
    ownership.a_refusal_moves_nothing,
    ownership.only_the_current_attempt_writes,
    counting.the_clock_is_set_again,
    ownership.only_a_claim_takes_hold,
    ownership.a_reclaim_needs_a_lapsed_lease,
    ownership.it_ends_once,
    ownership.a_turn_ends_once,
    ownership.the_epoch_rises_where_it_must,
    counting.a_worker_that_stays_returns_no_turn_for_free,
    counting.only_counted_dispatches_count,
    counting.each_failed_turn_counts_once,
    counting.each_lost_lease_counts_once,
    counting.only_a_hold_moves_ends_by,
    counting.only_a_person_starts_it_early,
    ownership.an_approval_is_given_by_approve,
    ownership.one_deliverable_at_the_end,
    ownership.a_dead_letter_if_the_reason_says_so,
    ownership.a_replay_asks_for_the_same_again,
    counting.a_clock_does_what_is_due_first,
    counting.no_rule_resets_a_later_ones_deadline,
    counting.an_agent_is_nudged_before_it_is_stopped,
    waiting.a_suspension_waits_for_what_was_called,
    waiting.each_wait_is_settled_once_and_alone,
    waiting.an_overdue_wait_is_reported_once,
    waiting.a_turn_goes_on_when_nothing_is_waited_for,
    waiting.nothing_that_arrives_is_lost,
    waiting.an_end_is_told_to_the_family,
    approval.an_approval_is_decided_once_and_in_time,
    approval.a_decision_lets_its_turn_go_on,
    work.a_record_lies_where_its_step_is_looked_for,
    work.recorded_work_is_believed_until_an_output_is_refused,
    work.an_open_step_keeps_its_time,
    work.only_the_ledger_lets_an_effect_run,
    work.an_effect_moves_only_by_its_facts,
    work.a_turn_that_ends_leaves_nothing_in_flight,
    work.a_persons_word_unblocks,
)
# what may be wrong although nothing was written about the task itself
SILENT_RULES: Final[tuple[Callable[[Step], None], ...]] = (
    waiting.an_overdue_wait_is_reported_once,
    waiting.nothing_that_arrives_is_lost,
    work.only_the_ledger_lets_an_effect_run,
)


def take(
    scene: Scene, command: c.TaskCommand, decision: Decision, now: int, limits: Limits, seen: Evidence
) -> Scene:
    """Fold what was decided, and check the step."""
    then = after(scene, command, decision, now)
    if scene.task is None:
        _check_creation(command, decision, then)
    elif then.task is not None:
        step = Step(scene.task, command, decision, then.task, now, limits, seen, scene, then)
        check_step(step)
    return then


def check_step(step: Step) -> None:
    """Everything that must hold of one command to one task."""
    if not step.decision.facts:
        _nothing_happened_rightly(step)
    elif step.decision.refusal is not None:
        _a_refused_write_is_only_noted(step)
    else:
        for rule in STEP_RULES:
            rule(step)


def _a_refused_write_is_only_noted(step: Step) -> None:
    ownership.a_refusal_moves_nothing(step)
    ownership.only_the_current_attempt_writes(step)
    decision = step.decision
    must(
        not (decision.cards or decision.messages or decision.closed or decision.spawn), "a refusal that acts"
    )
    must(step.scene_after.effects == step.scene_before.effects, "a refused command moved an effect")


def _nothing_happened_rightly(step: Step) -> None:
    """Most commands to most tasks are refused; what is left to ask then is whether something was due."""
    if isinstance(step.command, QUIET) and step.decision.refusal is None:
        for rule in SILENT_RULES:
            rule(step)
        return
    must(not step.decision.cards and step.decision.spawn is None, "a card or a new task without a fact")
    must(not step.decision.messages and not step.decision.closed, "a message without a fact")
    must(step.rule is None, f"{step.rule} is due and nothing happened")
    if isinstance(step.command, ONLY_BY_HOLDER):
        must(
            step.holds and _may_refuse(step),
            "the current attempt was refused, or a stale one without a trace",
        )


QUIET: Final = (c.Answer, c.Signal, c.Deliver, c.SkipMessage, c.InjectTimeout, c.IntendEffect, c.HearNudges)
"""Commands that may be answered, kept or closed without a fact about the task."""


def _may_refuse(step: Step) -> bool:
    """What the holder itself may be refused: an empty or endless wait, an effect not in its hands."""
    refusal = step.decision.refusal
    if isinstance(step.command, c.FinishEffect | c.DoubtEffect):
        row = step.scene_before.effect(step.command.key)
        is_own = row is not None and row.status == "intended" and row.attempt_id == step.command.attempt_id
        return isinstance(refusal, e.StaleAttempt) and not is_own
    if not isinstance(step.command, c.Suspend) or not isinstance(refusal, e.BadInput):
        return False
    kept = ("timer", "approval")
    return not step.command.calls or any(
        call.kind in kept and step.now + call.within >= step.before.ends_by for call in step.command.calls
    )


def _check_creation(command: c.TaskCommand, decision: Decision, then: Scene) -> None:
    task = then.task
    if task is None:
        is_bad = isinstance(command, c.Submit) and isinstance(decision.refusal, e.BadInput)
        must(is_bad or isinstance(decision.refusal, e.NotFound), "a command to no task was not refused")
        return
    must(isinstance(command, c.Submit), "only a submit makes a task")
    check_clock(task)
    must([card.id for card in decision.cards] == [instruction_id(task.id)], "no instruction card")
    must((task.dispatch_count, task.retry_count, task.epoch) == (0, 0, 0), "a new task is not new")
