"""Counting states up to renaming is honest: the machine treats a task and its canonical form alike."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from endwell.machine.decide import decide
from endwell.machine.decision import Seen
from endwell.model import commands as c
from endwell.model.task import Task
from tests.machine.canonical import HOLDER, NOW, canonical, key_of
from tests.machine.stages import fold
from tests.machine.world import TICK, Offer, Offers
from tests.machine.worlds import ONE_TASK

OFFERS = Offers(ONE_TASK)
LIMITS = ONE_TASK.limits


def as_canonical(task: Task, now: int) -> Task:
    return canonical(task, now, LIMITS.crash_window)


def as_given(command: c.TaskCommand, task: Task, new_attempt: str, now: int) -> c.TaskCommand:
    """The same command in a world with real ids and a real clock."""
    changes: dict[str, Any] = {}
    if isinstance(command, c.AttemptCommand) and command.attempt_id == HOLDER:
        changes["attempt_id"] = new_attempt if isinstance(command, c.Claim) else task.attempt_id
    if isinstance(command, c.Suspend):
        shift = now - NOW
        changes["waits"] = tuple(replace(wait, deadline=wait.deadline + shift) for wait in command.waits)
    return replace(command, **changes)


def offered(task: Task, index: int, seen: Seen) -> Offer:
    """Mostly something that moves the task, without ending it too soon."""
    offers = [*OFFERS.to(task), *OFFERS.to_with_sight(task)]
    moving = [o for o in offers if decide(task, o.command, NOW, LIMITS, seen).facts and o.cell != "Cancel"]
    choice = moving if moving and index % 10 else offers
    return choice[index % len(choice)]


@settings(max_examples=300, deadline=None)
@given(
    first=st.integers(0, len(ONE_TASK.submits) - 1),
    walk=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2), st.booleans()), min_size=5, max_size=40),
)
def test_a_task_and_its_canonical_form_are_answered_alike(
    first: int, walk: list[tuple[int, int, bool]]
) -> None:
    now = 77 * TICK
    task = fold(None, decide(None, OFFERS.first[first].command, now, LIMITS), now)
    for number, (index, ticks, is_live) in enumerate(walk):
        now += ticks * TICK
        same = as_canonical(task, now)
        seen = Seen(session_is_live=is_live)
        offer = offered(same, index, seen)
        answer = decide(task, as_given(offer.command, task, f"a{number}", now), now, LIMITS, seen)
        its_answer = decide(same, offer.command, NOW, LIMITS, seen)

        assert [fact.type for fact in answer.facts] == [fact.type for fact in its_answer.facts]
        assert type(answer.refusal) is type(its_answer.refusal)
        after, its_after = (fold(t, d, at) for t, d, at in ((task, answer, now), (same, its_answer, NOW)))
        assert key_of(as_canonical(after, now)) == key_of(as_canonical(its_after, NOW))
        task = after


def test_time_that_passes_while_a_person_holds_a_task_changes_nothing_but_the_reminder() -> None:
    task = fold(None, decide(None, OFFERS.first[0].command, NOW, LIMITS), NOW)
    block = next(o.command for o in OFFERS.to(task) if isinstance(o.command, c.Block))
    held = fold(task, decide(task, block, NOW, LIMITS), NOW)

    soon, late = as_canonical(held, NOW), as_canonical(held, NOW + 50 * TICK)

    assert late == replace(soon, remind_at=NOW, clock_at=NOW)
