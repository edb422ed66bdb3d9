"""What an attempt's records say, field by field: steps, drafts and effects.

These tests pin every field, so that mutants are noticed: an intended change of a field changes them too.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from endwell.machine.decide import decide
from endwell.machine.decision import Decision, Evidence
from endwell.machine.effects import settle_effect
from endwell.machine.steps import progress_deadline
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.card import Card
from endwell.model.content import fingerprint
from endwell.model.effect import Effect
from endwell.model.inside import Family, Inside, packed_family, packed_inside
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.policy import ledger
from endwell.policy.limits import Limits
from tests.machine.stages import BROKEN, EFFECT, LIMITS, NOW, effect_after, give, offer, running_task, to

DUE = NOW + 300 * SECOND
MARGIN = LIMITS.effect_margin
TASK = running_task()
MAIL = "t.s.1:()mail#1"


def intended(**changes: Any) -> Effect:
    effect = effect_after(None, TASK, offer(TASK, c.IntendEffect))
    assert effect is not None
    return replace(effect, **changes)


def asked(kind: type[c.TaskCommand], effect: Effect | None, now: int = NOW, **options: Any) -> Decision:
    return decide(TASK, to(kind, TASK, **options), now, LIMITS, Evidence(effect=effect))


# by when the next sign of life is due


@pytest.mark.parametrize(("allowed", "due"), [(0, 300), (269, 300), (270, 300), (271, 301), (600, 630)])
def test_a_step_is_allowed_its_time_and_a_little_longer(allowed: int, due: int) -> None:
    found = progress_deadline(TASK, NOW, LIMITS, allowed * SECOND)

    assert found == NOW + due * SECOND
    started = f.StepStarted(step="1:()long#1", progress_by=found)
    assert offer(TASK, c.StartStep, timeout=allowed * SECOND) == Decision(facts=(started,))


def test_a_step_that_is_open_keeps_its_time_until_it_is_over() -> None:
    busy = replace(TASK, inside=packed_inside(Inside(doing=(("one", DUE + 5), ("two", DUE - 5)))))

    assert progress_deadline(busy, NOW, LIMITS) == DUE + 5
    assert progress_deadline(busy, NOW, LIMITS, over="one") == DUE
    assert progress_deadline(busy, NOW, LIMITS, over="two") == DUE + 5
    assert progress_deadline(replace(busy, status="queued"), NOW, LIMITS) == DUE
    assert progress_deadline(busy, NOW, Limits(active_reap=None)) == TASK.ends_by
    assert progress_deadline(TASK, NOW, LIMITS, over="one") == DUE
    assert progress_deadline(TASK, NOW, Limits(active_reap=0, step_grace=30)) == NOW


# steps and drafts


@pytest.mark.parametrize(
    ("result_type", "is_checked", "kind"),
    [
        ("success", False, "step.result"),
        ("success", True, "step.checked"),
        ("permanent_failure", False, "step.failure"),
        ("permanent_failure", True, "step.failure"),
    ],
)
def test_a_record_is_one_fact_and_one_card(result_type: str, is_checked: bool, kind: Any) -> None:
    said: dict[str, Any] = {"result_type": result_type, "took": 7, "error": BROKEN}
    decision = offer(TASK, c.RecordStep, step="1:()plan#1", is_checked=is_checked, **said)

    recorded = f.StepRecorded(
        step="1:()plan#1",
        progress_by=DUE,
        result_type=result_type,
        card="t.s.1:()plan#1",
        card_hash="r",
        took=7,
        error=BROKEN,
        card_kind=kind if kind == "step.checked" else None,
    )
    card = Card("default", "t.s.1:()plan#1", "t", kind, b"1", "r", NOW)
    assert decision == Decision(facts=(recorded,), cards=(card,))
    nothing = offer(TASK, c.RecordStep, step="1:()plan#1", content=None, **said)
    assert nothing == Decision(facts=(replace(recorded, card=None, card_hash=None, card_kind=None),))


@pytest.mark.parametrize("kind", [c.RecordStep, c.FinishEffect])
def test_a_long_step_that_is_recorded_is_not_waited_for_any_more(kind: type[c.TaskCommand]) -> None:
    doing = Inside(doing=((EFFECT["step"], DUE + 5),))
    busy = replace(TASK, inside=packed_inside(doing))
    said = {"step": EFFECT["step"], "content": b"1", "content_hash": "r"}

    decision = decide(busy, to(kind, busy, **said), NOW, LIMITS, Evidence(effect=intended()))

    (recorded,) = [fact for fact in decision.facts if isinstance(fact, f.StepRecorded)]
    assert recorded.progress_by == DUE


def test_a_draft_is_kept_under_the_number_of_its_event() -> None:
    card_id = f"t.draft{TASK.version + 1}"

    assert offer(TASK, c.KeepDraft) == Decision(
        facts=(f.DraftKept(card=card_id, card_hash="r", progress_by=DUE),),
        cards=(Card("default", card_id, "t", "task.draft", b"1", "r", NOW),),
    )


# effects


def test_an_intent_says_until_when_others_keep_away() -> None:
    replay = replace(TASK, family=packed_family(Family(lineage="t0")))
    command = to(c.IntendEffect, args_hash="args", timeout=600 * SECOND)

    intent = f.EffectIntended(
        key="mail",
        step="1:()mail#1",
        args_hash="args",
        lineage="t",
        not_after=NOW + 600 * SECOND,
        progress_by=NOW + 630 * SECOND,
    )
    allowed = ledger.AllowExecute(NOW + 600 * SECOND)
    assert decide(TASK, command, NOW, LIMITS) == Decision(facts=(intent,), ledger=allowed)
    assert decide(replay, command, NOW, LIMITS).facts == (replace(intent, lineage="t0"),)


def test_an_effect_done_before_is_recorded_as_a_reference_to_its_result() -> None:
    done = intended(status="done", result_card="c", result_hash="h")
    busy = replace(TASK, inside=packed_inside(Inside(doing=((EFFECT["step"], DUE + 5),))))
    content = b'{"inputs":"a","ref":"c"}'

    assert decide(busy, to(c.IntendEffect), NOW, LIMITS, Evidence(effect=done)) == Decision(
        facts=(
            f.StepRecorded(
                step="1:()mail#1",
                progress_by=DUE,
                result_type="side_effect_committed",
                card=MAIL,
                card_hash=fingerprint(content),
                card_kind="step.reference",
            ),
        ),
        cards=(Card("default", MAIL, "t", "step.reference", content, fingerprint(content), NOW),),
        ledger=ledger.ReturnRecordedResult("c", "h"),
    )


@pytest.mark.parametrize(
    ("effect", "is_news"),
    [
        (intended(not_after=NOW - MARGIN), True),
        (intended(status="unknown"), False),
        (intended(status="unknown", task_id="t0"), True),
    ],
)
def test_a_doubt_is_written_once_and_belongs_to_the_asking_task(effect: Effect, is_news: bool) -> None:
    decision = asked(c.IntendEffect, effect)

    doubt = f.EffectDoubted(key="mail", reason="its attempt did not say how it ended", adopts=True)
    assert decision.facts == ((doubt,) if is_news else ())
    assert isinstance(decision.ledger, ledger.Rejected)
    assert decision.ledger.code == "effect_unknown"


def test_an_abandoned_or_running_effect_is_answered_without_a_write() -> None:
    given_up = asked(c.IntendEffect, intended(status="abandoned", settled_by="ada", task_id="t0"))
    under_way = asked(c.IntendEffect, intended(not_after=NOW))

    assert (given_up.facts, under_way.facts) == ((), ())
    assert under_way == Decision(ledger=ledger.WaitOtherWorker(NOW + MARGIN))
    assert isinstance(given_up.ledger, ledger.Rejected)


def test_an_effect_that_is_done_is_the_steps_record_too() -> None:
    recorded = f.StepRecorded(
        step="1:()mail#1",
        progress_by=DUE,
        result_type="side_effect_committed",
        card=MAIL,
        card_hash="r",
        took=7,
    )

    assert asked(c.FinishEffect, intended(), took=7) == Decision(
        facts=(f.EffectDone(key="mail", card=MAIL, card_hash="r"), recorded),
        cards=(Card("default", MAIL, "t", "step.result", b"1", "r", NOW),),
    )


def test_a_doubt_says_why() -> None:
    assert asked(c.DoubtEffect, intended(), reason="it timed out") == Decision(
        facts=(f.EffectDoubted(key="mail", reason="it timed out"),)
    )


# settling


@pytest.mark.parametrize(
    ("options", "changes", "now", "is_heard"),
    [
        ({"attempt_id": "a1"}, {}, NOW, True),
        ({"attempt_id": "a1"}, {"attempt_id": "a0"}, NOW, False),
        ({}, {}, NOW, False),
        ({}, {"attempt_id": None}, NOW, False),
        ({"holder_gone": True}, {}, NOW, True),
        ({"holder_gone": True, "verdict": "abandon"}, {}, NOW, False),
        ({}, {"not_after": NOW}, NOW + MARGIN - 1, False),
        ({}, {"not_after": NOW}, NOW + MARGIN, True),
    ],
)
def test_an_intent_is_settled_by_its_own_attempt_or_after_its_time(
    options: dict[str, Any], changes: dict[str, Any], now: int, is_heard: bool
) -> None:
    refusal = asked(c.SettleEffect, intended(**changes), now, **options).refusal

    assert (refusal is None) is is_heard
    assert refusal is None or refusal.code == "effect_in_flight"


def test_an_intent_without_a_time_is_over_after_the_margin() -> None:
    timeless, command = Evidence(effect=intended(not_after=None)), to(c.SettleEffect)

    assert settle_effect(TASK, command, MARGIN - 1, LIMITS, timeless).refusal is not None
    assert settle_effect(TASK, command, MARGIN, LIMITS, timeless).refusal is None


@pytest.mark.parametrize(
    ("options", "may"),
    [
        ({}, False),
        ({"holder_gone": True}, True),
        ({"may_repeat": True}, True),
        ({"verdict": "abandon"}, True),
    ],
)
def test_an_attempt_settles_not_done_only_when_no_call_can_be_running(
    options: dict[str, Any], may: bool
) -> None:
    said = {"attempt_id": "a1", "verdict": "not_done", **options}
    doubted = intended(status="unknown", attempt_id="a0")

    late = NOW + 60 * SECOND + MARGIN
    assert (asked(c.SettleEffect, doubted, late, **said).refusal is None) is may
    assert asked(c.SettleEffect, intended(status="unknown"), late, **said).refusal is None


@pytest.mark.parametrize("whose", [{"attempt_id": "a1"}, {}])
@pytest.mark.parametrize(
    ("said", "content", "digest"),
    [
        ({"content": b"[1]", "content_hash": "own"}, b"[1]", "own"),
        ({"content": b"[1]"}, b"[1]", fingerprint(b"[1]")),
        ({}, b"null", fingerprint(b"null")),
    ],
)
def test_an_effect_settled_as_done_has_a_card_of_its_own(
    whose: dict[str, Any], said: dict[str, Any], content: bytes, digest: str
) -> None:
    settled = f.EffectSettled(key="mail", verdict="done", by="ada", card="t.e.mail", card_hash=digest)

    assert asked(c.SettleEffect, intended(status="unknown"), **whose, **said) == Decision(
        facts=(settled,), cards=(Card("default", "t.e.mail", "t", "step.result", content, digest, NOW),)
    )


@pytest.mark.parametrize("verdict", ["not_done", "abandon"])
def test_an_effect_not_settled_as_done_has_no_card(verdict: str) -> None:
    unknown, late = intended(status="unknown"), NOW + 60 * SECOND + MARGIN
    assert asked(c.SettleEffect, unknown, late, verdict=verdict, content=b"[1]") == Decision(
        facts=(f.EffectSettled(key="mail", verdict=verdict, by="ada"),)
    )


def test_a_verdict_frees_only_the_task_held_for_its_effect() -> None:
    settled = f.EffectSettled(key="mail", verdict="abandon", by="eve")
    freed = f.TaskUnblocked(by="eve", run_at=NOW, ends_by=TASK.ends_by)

    def said_to(task: Task, verdict: str = "abandon") -> Decision:
        command = to(c.SettleEffect, verdict=verdict, actor="eve")
        return decide(task, command, NOW, LIMITS, Evidence(effect=intended(status="unknown")))

    held = give(TASK, to(c.Block, reason="effect_unknown"))
    assert said_to(held) == Decision(facts=(settled, freed))
    assert [card.id for card in said_to(held, "done").cards] == ["t.e.mail"]
    assert said_to(give(TASK, to(c.Block, reason="look"))).facts == (settled,)
    assert said_to(replace(TASK, reason="effect_unknown")).facts == (settled,)
