"""The walk can fail inside a turn too: each of these small defects is found by it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from endwell.machine import approvals, clocks, effects, endings, evolve_rows, repeat_guard, steps, waiting
from endwell.machine.decision import NOTHING, Decision, Evidence
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.task import Task
from endwell.policy import ledger
from tests.machine.planting import Plant, folded, handler, replaced, rule
from tests.machine.walk.explore import explore, report
from tests.machine.walk.world import World, small_limits
from tests.machine.walk.worlds import APPROVALS, CIRCLES, EFFECTS, OTHER_WAITS, STEPS, WAITS

ENOUGH = 20_000


def _done_is_done_again(*args: Any, **facts: Any) -> ledger.LedgerAnswer:
    answer = RIGHT_ANSWER(*args, **facts)
    is_done = isinstance(answer, ledger.ReturnRecordedResult)
    return ledger.AllowExecute(facts["now"] + facts["timeout"]) if is_done else answer


RIGHT_ANSWER = ledger.answer
RIGHT_VOICE = approvals._refuse_voter


def _anybodys_intent(effect: Any, attempt_id: str) -> bool:
    return effect is not None and effect.status == "intended"


def _a_second_answer_applies(right: Any, task: Task, command: c.Answer, *args: Any) -> Decision:
    decision: Decision = right(task, command, *args)
    if not any(message.watchdog_error == "late" for message in decision.messages):
        return decision
    again = f.WaitAnswered(
        tool_call_id=command.tool_call_id, wait_status="applied", result_card="second", wait_by=task.wait_by
    )
    return replace(decision, facts=(again,))


def _a_late_answer_is_thrown_away(right: Any, *args: Any) -> Decision:
    decision: Decision = right(*args)
    return replace(decision, messages=tuple(m for m in decision.messages if m.watchdog_error is None))


def _anything_is_skipped(right: Any, task: Task, command: c.Deliver, *args: Any) -> Decision:
    decision: Decision = right(task, command, *args)
    skipped = tuple(replace(closing, status="skipped") for closing in decision.closed)
    return replace(decision, closed=skipped)


UNTAKEN = World(
    name="one task that is offered in vain", limits=small_limits(max_retries=0, dispatch_timeout=1)
)


def _without_owner(decision: Decision, task: Task) -> Decision:
    facts = (replace(x, owner=None) if isinstance(x, f.TaskBlocked) else x for x in decision.facts)
    return replace(decision, facts=tuple(facts))


def _no_time_is_given_back(decision: Decision, task: Task) -> Decision:
    return replace(decision, facts=tuple(x for x in decision.facts if not isinstance(x, f.TaskHeartbeat)))


def _without_messages(right: Any, *args: Any) -> Decision:
    decision: Decision = right(*args)
    return replace(decision, messages=())


def _in_silence(right: Any, *args: Any) -> Decision:
    decision: Decision = right(*args)
    return replace(decision, facts=())


def _leaving_nothing(task: Task, failure: endings.TurnFailure, now: int) -> Any:
    code = failure.error.code
    doubts = endings.doubt_intents(task, code)
    return (*doubts, *endings._end_turn(task, failure.ends_as, code, failure.forced)), ()


def _nobodys_block(right: Any, task: Task, command: c.Block, *args: Any) -> Decision:
    blocked: Decision = right(task, replace(command, attempt_id=None), *args)
    return blocked


def _no_lineage(right: Any, *args: Any) -> Decision:
    decision: Decision = right(*args)
    return (
        decision if decision.spawn is None else replace(decision, spawn=replace(decision.spawn, lineage=None))
    )


def _one_voice_is_enough(open_one: Any, command: Any) -> Any:
    return RIGHT_VOICE(replace(open_one, votes=()), command)


def _the_cap_comes_first(patch: pytest.MonkeyPatch) -> None:
    rules = clocks._BY_STATUS["suspended"]
    by_cap = sorted(rules, key=lambda entry: entry[0].name == "inject_timeout")
    patch.setitem(clocks._BY_STATUS, "suspended", tuple(by_cap))


def _an_open_step_is_forgotten(task: Task, now: int, limits: Any, allowed: int = 0, over: str = "") -> int:
    return now + max(int(limits.active_reap), allowed)


def _no_card_is_looked_for(
    right: Any, task: Task, command: Any, now: int, limits: Any, seen: Evidence
) -> Decision:
    every = frozenset(f"t.c.{name}" for name in ("w1", "w2", "lost"))
    reported: Decision = right(task, command, now, limits, replace(seen, calls=every))
    return reported


DEFECTS: dict[str, tuple[World, Plant]] = {
    "a ledger that allows what is intended": (
        EFFECTS,
        replaced(ledger, "_while_intended", lambda effect, now, margin: ledger.AllowExecute(now)),
    ),
    "unknown taken for not done": (
        EFFECTS,
        replaced(ledger, "_unknown_outcome", lambda effect: ledger.AllowExecute(0)),
    ),
    "a done effect that is executed again": (EFFECTS, replaced(ledger, "answer", _done_is_done_again)),
    "an effect finished by who did not intend it": (
        EFFECTS,
        replaced(effects, "_is_own_intent", _anybodys_intent),
    ),
    "not done from any sender": (
        EFFECTS,
        replaced(ledger, "may_run_again", lambda **reasons: True),
    ),
    "an intent settled while it is in flight": (
        EFFECTS,
        replaced(effects, "_may_settle_intent", lambda *args: True),
    ),
    "an intent that is not doubted at the end": (
        EFFECTS,
        replaced(endings, "doubt_intents", lambda task, reason: ()),
    ),
    "an end that doubts what another has settled": (
        EFFECTS,
        replaced(evolve_rows, "_is_own_intent", lambda effect, task: True),
    ),
    "a person's verdict that frees no task": (
        EFFECTS,
        replaced(effects, "end_hold", lambda *args, **options: NOTHING),
    ),
    "a block by a stale attempt": (EFFECTS, handler(c.Block, _nobodys_block)),
    "a replay that forgets its lineage": (EFFECTS, handler(c.Replay, _no_lineage)),
    "a report that clears the siblings' deadlines": (
        WAITS,
        folded(f.WaitExpired, lambda before, after, fact: replace(after, wait_by=None)),
    ),
    "a timeout that is reported again and again": (
        WAITS,
        folded(f.WaitExpired, lambda before, after, fact: replace(after, waits=before.waits)),
    ),
    "a second answer that applies": (WAITS, handler(c.Answer, _a_second_answer_applies)),
    "a late answer that is thrown away": (WAITS, handler(c.Answer, _a_late_answer_is_thrown_away)),
    "a message of a live task that is skipped": (WAITS, handler(c.Deliver, _anything_is_skipped)),
    "an early answer that is forgotten": (
        WAITS,
        replaced(waiting, "_apply_early", lambda *args: NOTHING),
    ),
    "a cap that comes before the reports": (WAITS, _the_cap_comes_first),
    "a skipped wait that loses its cap": (
        OTHER_WAITS,
        folded(f.WaitExpired, lambda before, after, fact: replace(after, suspend_by=None)),
    ),
    "a tool without a card that is reported": (OTHER_WAITS, handler(c.InjectTimeout, _no_card_is_looked_for)),
    "a sleep that cannot end": (EFFECTS, replaced(waiting, "_cannot_end", lambda *args: False)),
    "an approval by anybody": (APPROVALS, replaced(approvals, "_refuse_voter", lambda *args: None)),
    "a voice that counts twice": (APPROVALS, replaced(approvals, "_refuse_voter", _one_voice_is_enough)),
    "an expired approval that is approved": (
        APPROVALS,
        replaced(approvals, "_refuse_late", lambda *args: None),
    ),
    "an approval decided by a tool's answer": (
        APPROVALS,
        lambda patch: patch.setitem(waiting._ANSWERED_BY, "tool_result", ("tool", "call", "approval")),
    ),
    "a reminder of what is decided": (
        APPROVALS,
        folded(f.ApprovalApproved, lambda before, after, fact: replace(after, remind_at=before.remind_at)),
    ),
    "a refused output that keeps its run": (
        STEPS,
        folded(f.TaskRetryScheduled, lambda before, after, fact: replace(after, inside=before.inside)),
    ),
    "an open step that loses its time": (
        STEPS,
        replaced(steps, "progress_deadline", _an_open_step_is_forgotten),
    ),
    "an agent that is stopped without a nudge": (
        CIRCLES,
        replaced(repeat_guard, "judge_rounds", lambda count, nudges, limits: "stop"),
    ),
    "a nudge without a message": (CIRCLES, handler(c.Repeat, _without_messages)),
    "a message that is skipped without a word": (WAITS, handler(c.SkipMessage, _in_silence)),
    "a forced end that leaves no deliverable": (
        STEPS,
        replaced(endings, "_end_turn_alone", _leaving_nothing),
    ),
    "an untaken task without an owner": (UNTAKEN, rule("dispatch_timeout", _without_owner)),
    "a person who gets it without retries": (
        UNTAKEN,
        folded(f.TaskUnblocked, lambda before, after, fact: replace(after, retry_count=before.retry_count)),
    ),
    "a reaper that counts time without a supervisor": (CIRCLES, rule("reap", _no_time_is_given_back)),
    "an end without messages to the family": (
        STEPS,
        replaced(endings, "tell_family", lambda *args: ()),
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_the_walk_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world, plant = DEFECTS[name]
    plant(monkeypatch)

    walk = explore(world, ENOUGH)

    assert walk.violation is not None
    assert len(report(walk)) > 2
