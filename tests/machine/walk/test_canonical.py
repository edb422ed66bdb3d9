"""Counting states up to renaming is honest: the machine treats a scene and its canonical form alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from endwell.machine.decide import decide
from endwell.machine.decision import Decision, Evidence
from endwell.model import commands as c
from endwell.model.task import Task
from tests.machine.walk.canonical import HOLDER, NOW, canonical_scene, key_of, message_names
from tests.machine.walk.graph import Graph
from tests.machine.walk.scene import Scene, after, beside
from tests.machine.walk.world import TICK, Offer, World
from tests.machine.walk.worlds import APPROVALS, CIRCLES, EFFECTS, ONE_TASK, OTHER_WAITS, STEPS, WAITS

Walk = list[tuple[int, int, bool]]
walks = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2), st.booleans()), min_size=5, max_size=40)


def as_given(command: c.TaskCommand, scene: Scene, number: int) -> c.TaskCommand:
    """The same command in a world with real ids."""
    changes: dict[str, Any] = {"command_id": f"x{number}"}
    if getattr(command, "attempt_id", None) == HOLDER:
        is_claim = isinstance(command, c.Claim)
        changes["attempt_id"] = f"a{number}" if is_claim or scene.task is None else scene.task.attempt_id
    if isinstance(command, c.Deliver | c.SkipMessage):
        ids = (message.id for message in scene.inbox)
        real = dict(zip(message_names(scene.inbox), ids, strict=True))
        changes["message_id"] = real.get(command.message_id, "nothing")
    return replace(command, **changes)


class Pair:
    """A real scene, and every command given to it and to its canonical form."""

    def __init__(self, world: World, first: int) -> None:
        self.graph = Graph(world)
        self.limits = world.limits
        self.now = 77 * TICK
        submit = self.graph.offers.first[first % len(world.submits)].command
        self.scene = after(Scene(), submit, decide(None, submit, self.now, self.limits), self.now)

    def canonical(self, scene: Scene, now: int) -> Scene:
        return canonical_scene(scene, now, self.limits, with_steps=self.graph.world.with_steps)

    def answer(
        self, scene: Scene, command: c.TaskCommand, now: int, seen: Evidence
    ) -> tuple[Decision, Scene]:
        sight = beside(scene, command, seen, self.graph.cards)
        decision = decide(scene.task, command, now, self.limits, sight)
        return decision, after(scene, command, decision, now)

    def offered(self, same: Scene, index: int, seen: Evidence) -> Offer:
        """Mostly something that moves the task, without ending it too soon."""
        offers = [*self.graph.offers.to(same), *self.graph.offers.to_with_sight(same.task)]
        offers = [offer for offer in offers if not offer.is_neighbours]
        moving = [offer for offer in offers if self._moves(same, offer, seen) and offer.cell != "Cancel"]
        choice = moving if moving and index % 10 else offers
        return choice[index % len(choice)]

    def _moves(self, same: Scene, offer: Offer, seen: Evidence) -> bool:
        decision, _ = self.answer(same, offer.command, NOW, seen)
        return bool(decision.facts or decision.messages) and decision.refusal is None

    def step(self, number: int, index: int, ticks: int, is_live: bool) -> None:
        self.now += ticks * TICK
        same = self.canonical(self.scene, self.now)
        seen = Evidence(session_is_live=is_live)
        offer = self.offered(same, index, seen)
        command = as_given(offer.command, self.scene, number)
        answer, then = self.answer(self.scene, command, self.now, seen)
        its_answer, its_then = self.answer(same, offer.command, NOW, seen)

        assert [fact.type for fact in answer.facts] == [fact.type for fact in its_answer.facts]
        assert type(answer.refusal) is type(its_answer.refusal)
        assert type(answer.ledger) is type(its_answer.ledger)
        assert key_of(self.canonical(then, self.now)) == key_of(self.canonical(its_then, NOW))
        self.scene = then


@pytest.mark.parametrize(
    "world", [ONE_TASK, EFFECTS, STEPS, WAITS, OTHER_WAITS, APPROVALS, CIRCLES], ids=lambda world: world.name
)
def test_a_scene_and_its_canonical_form_are_answered_alike(world: World) -> None:
    @settings(max_examples=60, deadline=None)
    @given(first=st.integers(0, 9), walk=walks)
    def walked(first: int, walk: Walk) -> None:
        pair = Pair(world, first)
        for number, (index, ticks, is_live) in enumerate(walk):
            pair.step(number, index, ticks, is_live)

    walked()


def test_time_that_passes_while_a_person_holds_a_task_changes_nothing_but_the_reminder() -> None:
    pair = Pair(ONE_TASK, 0)
    offers = pair.graph.offers.to(pair.scene)
    block = next(o.command for o in offers if isinstance(o.command, c.Block))
    _, held = pair.answer(pair.scene, block, NOW, Evidence())

    soon, late = (pair.canonical(held, at).task for at in (NOW, NOW + 50 * TICK))

    assert isinstance(soon, Task)
    assert late == replace(soon, remind_at=NOW, clock_at=NOW)
