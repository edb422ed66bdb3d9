"""Tasks that are held for an effect, and what the end or the replay of a task means for its effects."""

from __future__ import annotations

import pytest

from endwell import errors as e
from endwell.model import commands as c
from endwell.model.inside import inside_of
from endwell.policy.ledger import AllowExecute, Rejected, ReturnRecordedResult
from tests.machine.effects import OVER, TaskWithEffect, done, in_doubt, in_flight
from tests.machine.stages import dead_letter, give, offer, running_task, to


@pytest.mark.parametrize("verdict", ["done", "not_done", "abandon"])
def test_a_verdict_frees_the_task_held_for_its_effect(verdict: str) -> None:
    pair = in_doubt()
    pair.give(c.Block, reason="effect_unknown", attempt_id="a1", effect_key="mail")
    assert (pair.task.status, pair.task.clock_rule) == ("blocked", "remind")

    pair.give(c.SettleEffect, OVER, verdict=verdict)

    assert pair.task.status == "queued"
    assert pair.effect is not None
    assert pair.effect.settled_by == "ada"


@pytest.mark.parametrize("verdict", ["done", "not_done", "abandon"])
def test_a_task_is_not_held_for_an_effect_that_is_settled(verdict: str) -> None:
    pair = in_doubt()
    key = pair.effect.key if pair.effect is not None else ""
    pair.give(c.SettleEffect, OVER, verdict=verdict)

    answer = pair.ask(c.Block, reason="effect_unknown", attempt_id="a1", effect_key=key)

    assert answer.refusal is not None
    assert answer.refusal.code == "effect_settled"


def test_a_verdict_does_not_free_a_task_held_for_another_reason() -> None:
    pair = in_doubt()
    pair.give(c.Block, reason="held", owner="ada")

    pair.give(c.SettleEffect)

    assert pair.task.status == "blocked"


def test_a_verdict_does_not_free_a_task_held_for_another_effect() -> None:
    pair = in_doubt()
    pair.give(c.Block, reason="effect_unknown", attempt_id="a1", effect_key="another")

    pair.give(c.SettleEffect)

    assert pair.task.status == "blocked"
    refusal = pair.ask(c.Unblock, effect_key="mail").refusal
    assert isinstance(refusal, e.WrongStatus)
    assert refusal.task_id == pair.task.id
    assert pair.ask(c.Unblock, effect_key="another").refusal is None


def test_an_unblocked_task_is_held_for_no_effect() -> None:
    pair = in_doubt()
    pair.give(c.Block, reason="effect_unknown", attempt_id="a1", effect_key="mail")
    assert inside_of(pair.task).held_for == "mail"
    pair.give(c.Unblock)
    assert inside_of(pair.task).held_for == ""
    pair.give(c.Block, reason="held", owner="ada")

    assert isinstance(pair.ask(c.Unblock, effect_key="mail").refusal, e.WrongStatus)


def test_a_stale_attempt_cannot_block_the_task() -> None:
    pair = in_doubt()
    pair.next_attempt()

    answer = pair.ask(c.Block, reason="effect_unknown", attempt_id="a1")

    assert isinstance(answer.refusal, e.StaleAttempt)
    assert pair.ask(c.Block, reason="effect_unknown", attempt_id="a2").refusal is None


@pytest.mark.parametrize("kind", [c.Cancel, c.FailTurn, c.Finish])
def test_a_turn_that_ends_leaves_no_intent_behind(kind: type[c.TaskCommand]) -> None:
    pair = in_flight()

    pair.give(kind)

    assert pair.status == "unknown"
    assert inside_of(pair.task).intents == ()


def test_an_end_does_not_doubt_an_effect_that_another_task_settled() -> None:
    pair, neighbour = in_flight(), TaskWithEffect(running_task(task_id="neighbour"))
    neighbour.effect = pair.effect
    neighbour.give(c.IntendEffect, OVER)
    neighbour.give(c.SettleEffect, OVER, verdict="done", attempt_id="a1", may_repeat=True)
    assert neighbour.status == "done"
    pair.effect = neighbour.effect

    pair.give(c.Cancel, OVER)

    assert pair.status == "done"


def test_an_end_does_not_doubt_an_effect_that_another_task_intends() -> None:
    pair, neighbour = in_flight(), TaskWithEffect(running_task(task_id="neighbour"))
    neighbour.effect = pair.effect
    neighbour.give(c.IntendEffect, OVER)
    neighbour.give(c.SettleEffect, OVER, verdict="not_done", attempt_id="a1", may_repeat=True)
    neighbour.give(c.IntendEffect, OVER)
    pair.effect = neighbour.effect

    pair.give(c.Cancel, OVER)

    assert pair.effect is not None
    assert (pair.effect.status, pair.effect.task_id) == ("intended", "neighbour")


def test_a_replay_shares_the_effects_of_the_task_that_it_replays() -> None:
    new = offer(dead_letter(), c.Replay).spawn
    assert new is not None
    queued = give(None, new)
    pair = TaskWithEffect(give(queued, to(c.Claim, queued)), done().effect)

    assert isinstance(pair.ask(c.IntendEffect).ledger, ReturnRecordedResult)
    repaired = pair.ask(c.IntendEffect, args_hash="other arguments").ledger
    assert isinstance(repaired, Rejected)
    assert repaired.code == "effect_conflict"


def test_a_replay_may_repair_the_arguments_of_an_effect_that_was_not_done() -> None:
    pair = in_flight()
    pair.give(c.SettleEffect, verdict="not_done", attempt_id="a1", call_ended=True)

    assert isinstance(pair.ask(c.IntendEffect, args_hash="other arguments").ledger, AllowExecute)


@pytest.mark.parametrize("stage", ["in flight", "in doubt", "done"])
def test_other_arguments_under_one_key_in_one_task_are_a_conflict(stage: str) -> None:
    pair = {"in flight": in_flight, "in doubt": in_doubt, "done": done}[stage]()

    answer = pair.ask(c.IntendEffect, args_hash="other arguments").ledger

    assert isinstance(answer, Rejected)
    assert answer.code == "effect_conflict"


def test_a_key_that_another_lineage_uses_with_other_arguments_is_rejected() -> None:
    pair = TaskWithEffect(running_task(task_id="stranger"), done().effect)

    answer = pair.ask(c.IntendEffect, args_hash="other arguments")

    assert isinstance(answer.ledger, Rejected)
    assert answer.ledger.code == "effect_conflict"
