"""What each fact makes of an effect's row."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from endwell.machine.evolve_rows import EffectFact, evolve_effect
from endwell.model import facts as f
from endwell.model.effect import Effect
from endwell.model.task import Task

AT = 1000
TASK = Task("n", "t", "coder", attempt_id="a2", session_id="s2")
INTENT = f.EffectIntended(
    key="mail", step="1:()mail#1", args_hash="args", lineage="t0", not_after=1060, progress_by=1090
)
ROW = Effect(
    namespace="n",
    key="mail",
    task_id="t",
    lineage="t0",
    step="1:()mail#1",
    status="intended",
    args_hash="args",
    attempt_id="a2",
    session_id="s2",
    not_after=1060,
    result_card=None,
    result_hash=None,
    settled_by=None,
    version=1,
    created_at=AT,
    updated_at=AT,
)
OLD = replace(ROW, version=3, created_at=500, updated_at=600)
NEXT = replace(OLD, version=4, updated_at=AT)
ELSEWHERE = replace(OLD, task_id="t7")


def test_an_intent_is_a_new_row() -> None:
    assert evolve_effect(None, INTENT, TASK, AT) == ROW


def test_a_second_intent_replaces_the_row_of_the_first() -> None:
    settled = replace(
        OLD, task_id="t7", status="not_done", result_card="c", result_hash="h", settled_by="ada", not_after=1
    )

    assert evolve_effect(settled, INTENT, TASK, AT) == NEXT


MOVES: dict[str, tuple[Effect, EffectFact, Effect]] = {
    "done": (
        OLD,
        f.EffectDone(key="mail", card="c", card_hash="h"),
        replace(NEXT, status="done", result_card="c", result_hash="h"),
    ),
    "in doubt": (OLD, f.EffectDoubted(key="mail", reason=""), replace(NEXT, status="unknown")),
    "in doubt, but another's": (
        ELSEWHERE,
        f.EffectDoubted(key="mail", reason=""),
        replace(NEXT, status="unknown", task_id="t7"),
    ),
    "another's doubt that is taken over": (
        ELSEWHERE,
        f.EffectDoubted(key="mail", reason="", adopts=True),
        replace(NEXT, status="unknown"),
    ),
    "left behind": (
        OLD,
        f.EffectDoubted(key="mail", reason="", is_left_behind=True),
        replace(NEXT, status="unknown"),
    ),
    "left behind, but another is at it": (
        ELSEWHERE,
        f.EffectDoubted(key="mail", reason="", is_left_behind=True),
        ELSEWHERE,
    ),
    "left behind, but settled since": (
        replace(OLD, status="done"),
        f.EffectDoubted(key="mail", reason="", is_left_behind=True),
        replace(OLD, status="done"),
    ),
    "found done": (
        OLD,
        f.EffectSettled(key="mail", verdict="done", by="ada", card="c", card_hash="h"),
        replace(NEXT, status="done", settled_by="ada", result_card="c", result_hash="h"),
    ),
    "found not done": (
        OLD,
        f.EffectSettled(key="mail", verdict="not_done", by="ada"),
        replace(NEXT, status="not_done", settled_by="ada"),
    ),
    "given up": (
        OLD,
        f.EffectSettled(key="mail", verdict="abandon", by="ada"),
        replace(NEXT, status="abandoned", settled_by="ada"),
    ),
}


@pytest.mark.parametrize("what", MOVES)
def test_a_fact_moves_the_row(what: str) -> None:
    before, fact, after = MOVES[what]

    assert evolve_effect(before, fact, TASK, AT) == after


def test_an_effect_without_an_intent_cannot_be_done() -> None:
    with pytest.raises(ValueError, match=r"effect\.done"):
        evolve_effect(None, f.EffectDone(key="mail", card="c", card_hash="h"), TASK, AT)
