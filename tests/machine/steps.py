"""Every rule about a step, in one table, and the way to take a step under it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from endwell import errors as e
from endwell.machine import evolve as machine
from endwell.machine.decision import Decision, Seen
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.card import instruction_id
from endwell.model.task import Task
from endwell.policy.limits import Limits
from tests.machine import rules_of_counting as counting
from tests.machine import rules_of_ownership as ownership
from tests.machine.invariants import check_clock, must
from tests.machine.step import FENCED, Step

STEP_RULES: Final[tuple[Callable[[Step], None], ...]] = (
    ownership.a_refusal_moves_nothing,
    ownership.only_the_current_attempt_writes,
    counting.the_clock_is_set_again,
    ownership.only_a_claim_takes_hold,
    ownership.a_reclaim_needs_a_lapsed_lease,
    ownership.it_ends_once,
    ownership.a_turn_ends_once,
    ownership.the_epoch_rises_where_it_must,
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
    counting.each_wait_is_settled_once_and_alone,
)


def take(
    before: Task | None, command: c.TaskCommand, decision: Decision, now: int, limits: Limits, seen: Seen
) -> Task | None:
    """Fold what was decided, and check the step."""
    after = before
    for fact in decision.facts:
        must(type(fact) is f.BY_TYPE.get(fact.type), f"{fact.type} has no place in the log")
        after = machine.evolve(after, fact, now, namespace=command.namespace, task_id=command.task_id)
    if before is None:
        _check_creation(command, decision, after)
    elif after is not None:
        check_step(Step(before, command, decision, after, now, limits, seen))
    return after


def check_step(step: Step) -> None:
    """Everything that must hold of one command to one task."""
    if not step.decision.facts:
        _nothing_happened_rightly(step)
        return
    for rule in STEP_RULES:
        rule(step)


def _nothing_happened_rightly(step: Step) -> None:
    """Most commands to most tasks are refused; what is left to ask then is whether something was due."""
    must(not step.decision.cards and step.decision.spawn is None, "a card or a new task without a fact")
    must(step.rule is None, f"{step.rule} is due and nothing happened")
    if isinstance(step.command, FENCED):
        is_empty = isinstance(step.command, c.Suspend) and not step.command.waits
        must(is_empty and step.holds, "the current attempt was refused, or a stale one without a trace")


def _check_creation(command: c.TaskCommand, decision: Decision, after: Task | None) -> None:
    must((after is not None) == isinstance(command, c.Submit), "only a submit makes a task")
    if after is None:
        must(isinstance(decision.refusal, e.NotFound), "a command to no task was not refused")
        return
    check_clock(after)
    must([card.id for card in decision.cards] == [instruction_id(after.id)], "no instruction card")
    must((after.dispatch_count, after.retry_count, after.epoch) == (0, 0, 0), "a new task is not new")
