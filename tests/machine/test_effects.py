"""Effects: an intent first, a result or a doubt after it, and never a blind second execution."""

from __future__ import annotations

from typing import Any

import pytest

from endwell import errors as e
from endwell.machine.decide import decide
from endwell.machine.decision import Decision, Evidence
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.effect import Effect
from endwell.model.inside import inside_of
from endwell.model.moments import moment
from endwell.model.task import Task
from endwell.policy.ledger import AllowExecute, Rejected, ReturnRecordedResult, WaitOtherWorker
from endwell.policy.limits import SECOND
from tests.machine.stages import (
    LAPSED,
    LIMITS,
    NOW,
    dead_letter,
    effect_after,
    fold,
    give,
    offer,
    running_task,
    to,
)

OVER = NOW + 60 * SECOND + LIMITS.effect_margin


class Desk:
    """A task and the effect's row, moved together as the door moves them."""

    def __init__(self, task: Task, effect: Effect | None = None) -> None:
        self.task = task
        self.effect = effect

    def ask(self, kind: type[c.TaskCommand], now: int = NOW, **options: Any) -> Decision:
        return decide(self.task, to(kind, self.task, **options), now, LIMITS, Evidence(effect=self.effect))

    def give(self, kind: type[c.TaskCommand], now: int = NOW, **options: Any) -> Decision:
        decision = self.ask(kind, now, **options)
        self.effect = effect_after(self.effect, self.task, decision, now)
        self.task = fold(self.task, decision, now, self.task.id)
        return decision

    def next_attempt(self, now: int = NOW) -> None:
        """The holder is lost, and another attempt takes the turn."""
        self.task = give(self.task, to(c.Reclaim), now, seen=LAPSED)
        self.task = give(self.task, to(c.Claim, attempt_id="a2", session_id="s2"), now)

    @property
    def status(self) -> str | None:
        return self.effect.status if self.effect else None


def in_flight() -> Desk:
    """An attempt has written its intent and may be calling the function."""
    desk = Desk(running_task())
    desk.give(c.IntendEffect)
    return desk


def in_doubt() -> Desk:
    desk = in_flight()
    desk.give(c.DoubtEffect)
    return desk


def done() -> Desk:
    desk = in_flight()
    desk.give(c.FinishEffect)
    return desk


def test_the_intent_is_written_with_the_permission_to_execute() -> None:
    desk = Desk(running_task())

    answer = desk.give(c.IntendEffect)

    assert answer.ledger == AllowExecute(NOW + 60 * SECOND)
    assert desk.effect is not None
    assert (desk.effect.status, desk.effect.attempt_id) == ("intended", "a1")
    assert desk.effect.not_after == NOW + 60 * SECOND
    assert inside_of(desk.task).intents == ("mail",)


@pytest.mark.covers("S3.39", "S3.40")
def test_the_result_and_the_steps_record_are_one_commit() -> None:
    desk = in_flight()

    answer = desk.give(c.FinishEffect)

    assert [fact.type for fact in answer.facts] == ["effect.done", "step.recorded"]
    assert len(answer.cards) == 1
    assert desk.status == "done"
    assert inside_of(desk.task).intents == ()


@pytest.mark.covers("S3.14", "S3.15", "S3.16")
def test_a_stale_attempt_cannot_finish_an_effect_and_the_ledger_stays_as_it_was() -> None:
    desk = in_flight()
    desk.next_attempt()
    before = desk.effect

    answer = desk.give(c.FinishEffect, attempt_id="a1")

    assert isinstance(answer.refusal, e.StaleAttempt)
    assert [fact.type for fact in answer.facts] == ["write.refused"]
    assert desk.effect == before


@pytest.mark.covers("S3.16")
def test_the_current_attempt_cannot_finish_what_another_attempt_intended() -> None:
    desk = in_flight()
    desk.next_attempt()

    answer = desk.ask(c.FinishEffect, attempt_id="a2")

    assert isinstance(answer.refusal, e.StaleAttempt)
    assert answer.facts == ()


@pytest.mark.covers("T15")
def test_the_next_attempt_waits_for_an_intent_of_a_dead_one_and_then_finds_it_unknown() -> None:
    desk = in_flight()
    desk.next_attempt()
    assert isinstance(desk.ask(c.IntendEffect, attempt_id="a2").ledger, WaitOtherWorker)

    answer = desk.give(c.IntendEffect, OVER, attempt_id="a2")

    assert isinstance(answer.ledger, Rejected)
    assert (answer.ledger.code, desk.status) == ("effect_unknown", "unknown")


@pytest.mark.covers("S3.41")
def test_an_effect_done_before_is_returned_and_recorded_as_a_reference() -> None:
    desk = done()
    desk.next_attempt()

    answer = desk.give(c.IntendEffect, attempt_id="a2", step="2:()mail#1")

    assert isinstance(answer.ledger, ReturnRecordedResult)
    assert [card.kind for card in answer.cards] == ["step.reference"]
    assert desk.status == "done"


@pytest.mark.parametrize("verdict", ["done", "not_done", "abandon"])
def test_a_settled_effect_cannot_be_settled_again(verdict: str) -> None:
    refusal = done().ask(c.SettleEffect, verdict=verdict).refusal

    assert refusal is not None
    assert refusal.code == "effect_settled"


def test_a_timed_out_effect_is_unknown_and_not_executed_again() -> None:
    desk = in_doubt()

    answer = desk.ask(c.IntendEffect, OVER)

    assert desk.status == "unknown"
    assert isinstance(answer.ledger, Rejected)


@pytest.mark.parametrize("stage", ["in flight", "in doubt"])
def test_its_own_attempt_may_say_not_done_at_once_only_if_its_call_ended_by_itself(stage: str) -> None:
    desk = in_flight() if stage == "in flight" else in_doubt()
    refusal = desk.ask(c.SettleEffect, OVER - 1, verdict="not_done", attempt_id="a1").refusal
    assert refusal is not None
    assert refusal.code == "effect_in_flight"
    assert desk.ask(c.SettleEffect, OVER, verdict="not_done", attempt_id="a1").refusal is None

    desk.give(c.SettleEffect, verdict="not_done", attempt_id="a1", call_ended=True)

    assert isinstance(desk.ask(c.IntendEffect).ledger, AllowExecute)


def test_that_the_holder_is_gone_is_enough_only_after_its_time() -> None:
    """What a dead process sent may still be carried out."""
    desk = in_doubt()
    desk.next_attempt()
    said = {"verdict": "not_done", "attempt_id": "a2", "holder_gone": True}

    refusal = desk.ask(c.SettleEffect, OVER - 1, **said).refusal

    assert refusal is not None
    assert refusal.code == "effect_in_flight"
    assert desk.ask(c.SettleEffect, OVER, **said).refusal is None


@pytest.mark.parametrize("stage", ["in flight", "in doubt"])
def test_a_persons_not_done_before_its_time_is_refused_with_the_moment_unless_forced(stage: str) -> None:
    desk = in_flight() if stage == "in flight" else in_doubt()

    refusal = desk.ask(c.SettleEffect, OVER - 1, verdict="not_done").refusal

    assert refusal is not None
    assert refusal.code == "effect_in_flight"
    assert moment(OVER) in refusal.message
    assert desk.ask(c.SettleEffect, OVER, verdict="not_done").refusal is None
    desk.give(c.SettleEffect, NOW + 1, verdict="not_done", force=True)
    assert desk.effect is not None
    assert (desk.effect.status, desk.effect.settled_by) == ("not_done", "ada")


def test_a_persons_not_done_is_refused_while_a_worker_reports_the_call_in_progress() -> None:
    desk = in_doubt()

    refusal = desk.ask(c.SettleEffect, OVER, verdict="not_done", is_running=True).refusal

    assert refusal is not None
    assert refusal.code == "effect_in_flight"
    forced = desk.ask(c.SettleEffect, OVER, verdict="not_done", is_running=True, force=True)
    assert [fact.is_forced for fact in forced.facts if isinstance(fact, f.EffectSettled)] == [True]


def test_an_attempt_cannot_force_anything() -> None:
    desk = in_doubt()

    refusal = desk.ask(c.SettleEffect, OVER - 1, verdict="not_done", attempt_id="a1", force=True).refusal

    assert refusal is not None
    assert refusal.code == "effect_in_flight"


@pytest.mark.parametrize("reason", ["holder_gone", "may_repeat"])
def test_another_attempt_runs_it_again_only_where_that_does_no_harm(reason: str) -> None:
    desk = in_flight()
    desk.next_attempt()
    desk.give(c.IntendEffect, OVER, attempt_id="a2")
    refusal = desk.ask(c.SettleEffect, OVER, verdict="not_done", attempt_id="a2").refusal
    assert refusal is not None
    assert refusal.code == "effect_unknown"

    desk.give(c.SettleEffect, OVER, verdict="not_done", attempt_id="a2", **{reason: True})

    assert isinstance(desk.ask(c.IntendEffect, OVER, attempt_id="a2").ledger, AllowExecute)


@pytest.mark.parametrize(
    "whose",
    [{"attempt_id": "a2"}, {"attempt_id": "a2", "verdict": "not_done", "holder_gone": True}, {}],
)
def test_an_effect_in_flight_cannot_be_settled(whose: dict[str, Any]) -> None:
    desk = in_flight()
    desk.next_attempt()

    refusal = desk.ask(c.SettleEffect, OVER - 1, **whose).refusal

    assert refusal is not None
    assert refusal.code == "effect_in_flight"
    assert desk.ask(c.SettleEffect, OVER, **whose).refusal is None


def test_an_effect_of_a_dead_holder_may_be_settled_as_done_at_once() -> None:
    desk = in_flight()
    desk.next_attempt()

    assert desk.ask(c.SettleEffect, verdict="done", attempt_id="a2", holder_gone=True).refusal is None


def test_a_stale_attempt_settles_nothing() -> None:
    desk = in_flight()
    desk.next_attempt()

    assert isinstance(desk.ask(c.SettleEffect, OVER, attempt_id="a1").refusal, e.StaleAttempt)


@pytest.mark.parametrize("verdict", ["done", "not_done", "abandon"])
def test_a_verdict_frees_the_task_held_for_its_effect(verdict: str) -> None:
    desk = in_doubt()
    desk.give(c.Block, reason="effect_unknown", attempt_id="a1", effect_key="mail")
    assert (desk.task.status, desk.task.clock_rule) == ("blocked", "remind")

    desk.give(c.SettleEffect, OVER, verdict=verdict)

    assert desk.task.status == "queued"
    assert desk.effect is not None
    assert desk.effect.settled_by == "ada"


@pytest.mark.parametrize("verdict", ["done", "not_done", "abandon"])
def test_a_task_is_not_held_for_an_effect_that_is_settled(verdict: str) -> None:
    desk = in_doubt()
    key = desk.effect.key if desk.effect is not None else ""
    desk.give(c.SettleEffect, OVER, verdict=verdict)

    answer = desk.ask(c.Block, reason="effect_unknown", attempt_id="a1", effect_key=key)

    assert answer.refusal is not None
    assert answer.refusal.code == "effect_settled"


def test_a_verdict_does_not_free_a_task_held_for_another_reason() -> None:
    desk = in_doubt()
    desk.give(c.Block, reason="held", owner="ada")

    desk.give(c.SettleEffect)

    assert desk.task.status == "blocked"


def test_a_verdict_does_not_free_a_task_held_for_another_effect() -> None:
    desk = in_doubt()
    desk.give(c.Block, reason="effect_unknown", attempt_id="a1", effect_key="another")

    desk.give(c.SettleEffect)

    assert desk.task.status == "blocked"
    refusal = desk.ask(c.Unblock, effect_key="mail").refusal
    assert isinstance(refusal, e.WrongStatus)
    assert refusal.task_id == desk.task.id
    assert desk.ask(c.Unblock, effect_key="another").refusal is None


def test_an_unblocked_task_is_held_for_no_effect() -> None:
    desk = in_doubt()
    desk.give(c.Block, reason="effect_unknown", attempt_id="a1", effect_key="mail")
    assert inside_of(desk.task).held_for == "mail"
    desk.give(c.Unblock)
    assert inside_of(desk.task).held_for == ""
    desk.give(c.Block, reason="held", owner="ada")

    assert isinstance(desk.ask(c.Unblock, effect_key="mail").refusal, e.WrongStatus)


def test_a_stale_attempt_cannot_block_the_task() -> None:
    desk = in_doubt()
    desk.next_attempt()

    answer = desk.ask(c.Block, reason="effect_unknown", attempt_id="a1")

    assert isinstance(answer.refusal, e.StaleAttempt)
    assert desk.ask(c.Block, reason="effect_unknown", attempt_id="a2").refusal is None


@pytest.mark.parametrize("kind", [c.Cancel, c.FailTurn, c.Finish])
def test_a_turn_that_ends_leaves_no_intent_behind(kind: type[c.TaskCommand]) -> None:
    desk = in_flight()

    desk.give(kind)

    assert desk.status == "unknown"
    assert inside_of(desk.task).intents == ()


def test_an_end_does_not_doubt_an_effect_that_another_task_settled() -> None:
    desk, neighbour = in_flight(), Desk(running_task(task_id="neighbour"))
    neighbour.effect = desk.effect
    neighbour.give(c.IntendEffect, OVER)
    neighbour.give(c.SettleEffect, OVER, verdict="done", attempt_id="a1", may_repeat=True)
    assert neighbour.status == "done"
    desk.effect = neighbour.effect

    desk.give(c.Cancel, OVER)

    assert desk.status == "done"


def test_an_end_does_not_doubt_an_effect_that_another_task_intends() -> None:
    desk, neighbour = in_flight(), Desk(running_task(task_id="neighbour"))
    neighbour.effect = desk.effect
    neighbour.give(c.IntendEffect, OVER)
    neighbour.give(c.SettleEffect, OVER, verdict="not_done", attempt_id="a1", may_repeat=True)
    neighbour.give(c.IntendEffect, OVER)
    desk.effect = neighbour.effect

    desk.give(c.Cancel, OVER)

    assert desk.effect is not None
    assert (desk.effect.status, desk.effect.task_id) == ("intended", "neighbour")


def test_a_replay_shares_the_effects_of_the_task_that_it_replays() -> None:
    new = offer(dead_letter(), c.Replay).spawn
    assert new is not None
    queued = give(None, new)
    desk = Desk(give(queued, to(c.Claim, queued)), done().effect)

    assert isinstance(desk.ask(c.IntendEffect).ledger, ReturnRecordedResult)
    repaired = desk.ask(c.IntendEffect, args_hash="other arguments").ledger
    assert isinstance(repaired, Rejected)
    assert repaired.code == "effect_conflict"


def test_a_replay_may_repair_the_arguments_of_an_effect_that_was_not_done() -> None:
    desk = in_flight()
    desk.give(c.SettleEffect, verdict="not_done", attempt_id="a1", call_ended=True)

    assert isinstance(desk.ask(c.IntendEffect, args_hash="other arguments").ledger, AllowExecute)


@pytest.mark.parametrize("stage", ["in flight", "in doubt", "done"])
def test_other_arguments_under_one_key_in_one_task_are_a_conflict(stage: str) -> None:
    desk = {"in flight": in_flight, "in doubt": in_doubt, "done": done}[stage]()

    answer = desk.ask(c.IntendEffect, args_hash="other arguments").ledger

    assert isinstance(answer, Rejected)
    assert answer.code == "effect_conflict"


def test_a_key_that_another_lineage_uses_with_other_arguments_is_rejected() -> None:
    desk = Desk(running_task(task_id="stranger"), done().effect)

    answer = desk.ask(c.IntendEffect, args_hash="other arguments")

    assert isinstance(answer.ledger, Rejected)
    assert answer.ledger.code == "effect_conflict"
