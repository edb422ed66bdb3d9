"""Every canonical scene that can come about, and the moves between them, found by asking the machine.

The machine is pure and looks at one task, so what it says to a command is asked once for each canonical
scene and each thing it may see beside it, checked, and remembered. A world of several tasks is then
walked through by combining these moves; no state of it is left out, and none is asked for twice.
"""

from __future__ import annotations

from collections import defaultdict

from msgspec.structs import replace

from endwell.machine import decide as machine
from endwell.machine.decision import Decision, Evidence
from endwell.model import commands as c
from endwell.model.task import Task
from tests.machine.walk.canonical import NOW, Key, canonical_scene, key_of
from tests.machine.walk.invariants import check_state, has_turn, rule_due
from tests.machine.walk.scene import Scene, beside
from tests.machine.walk.steps import take
from tests.machine.walk.telling import describe
from tests.machine.walk.violation import Violation, must
from tests.machine.walk.world import NEIGHBOUR_TASK, SESSIONS, TICK, Offer, Offers, World

ABSENT = 0  # the number of the task that was never submitted
ANYTHING = Evidence()
KEY_HOLDERS = (None, "t", "another task")
LONGEST_WAY_TO_AN_END = 50  # clock firings, without any other command


class Graph:
    """Scenes are numbered in the order in which they are found."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.offers = Offers(world)
        self.cards = world.cards
        self.scenes: list[Scene] = [Scene()]
        self.has_turn = [False]
        self.cells: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.changes: set[tuple[str, str, str]] = set()
        self.fact_types: set[str] = set()
        self.longest_way = 0
        self._numbers: dict[Key, int] = {}
        self._free: dict[int, tuple[int, ...]] = {}
        self._by_sight: dict[tuple[int, int, bool, int], int] = {}
        self._moves: dict[int, tuple[int, ...]] = {}
        self._ticks: dict[int, int] = {ABSENT: ABSENT}
        self._swapped: dict[int, int] = {ABSENT: ABSENT}
        self._firings_left: dict[int, int] = {}

    @property
    def accepted(self) -> set[tuple[str, str]]:
        """The cells in which something came of the command."""
        return {cell for cell, outcomes in self.cells.items() if outcomes & {"facts", "kept"}}

    def number_of(self, scene: Scene, now: int = NOW) -> int:
        if scene.task is None:
            return ABSENT
        same = canonical_scene(scene, now, self.world.limits, with_steps=self.world.with_steps)
        number = self._numbers.setdefault(key_of(same), len(self.scenes))
        if number == len(self.scenes):
            check_state(same, self.world.limits)
            self.scenes.append(same)
            self.has_turn.append(has_turn(scene.task))
        return number

    def after_a_tick(self, number: int) -> int:
        found = self._ticks.get(number)
        if found is None:
            found = self._ticks[number] = self.number_of(self.scenes[number], NOW + TICK)
        return found

    def with_sessions_swapped(self, number: int) -> int:
        found = self._swapped.get(number)
        if found is None:
            found = self._swapped[number] = self._swap(number)
        return found

    def _swap(self, number: int) -> int:
        scene = self.scenes[number]
        if scene.task is None or scene.task.session_id is None:
            return number
        other = SESSIONS[1 - SESSIONS.index(scene.task.session_id)]
        return self.number_of(replace(scene, task=replace(scene.task, session_id=other)))

    def moves(self, number: int, live: int, key_holder: int) -> tuple[int, ...]:
        """Where a task can go by one command. `live` has a bit for each session whose lease holds."""
        sight = (number << 4) | (live << 2) | key_holder
        found = self._moves.get(sight)
        if found is None:
            targets = {*self._free_moves(number), *self._moves_by_sight(number, live, key_holder)}
            found = self._moves[sight] = tuple(sorted(targets - {number}))
        return found

    def _free_moves(self, number: int) -> tuple[int, ...]:
        found = self._free.get(number)
        if found is None:
            scene = self.scenes[number]
            offers = self.offers.first if scene.task is None else self.offers.to(scene)
            found = self._free[number] = tuple(self._give(number, offer, ANYTHING) for offer in offers)
            self._firings_to_an_end(number)
        return found

    def _moves_by_sight(self, number: int, live: int, key_holder: int) -> list[int]:
        moves: list[int] = []
        for index, offer in enumerate(self.offers.to_with_sight(self.scenes[number].task)):
            seen = self._seen(offer, live, key_holder)
            sight = (number, index, seen.session_is_live, key_holder)
            if sight not in self._by_sight:
                self._by_sight[sight] = self._give(number, offer, seen)
            moves.append(self._by_sight[sight])
        return moves

    @staticmethod
    def _seen(offer: Offer, live: int, key_holder: int) -> Evidence:
        is_live = offer.session is None or bool(live >> offer.session & 1)
        return Evidence(session_is_live=is_live, key_holder=KEY_HOLDERS[key_holder], rules=offer.rules)

    def named_moves(self, number: int, live: int, key_holder: int) -> list[tuple[str, int]]:
        """The same moves with the commands that make them, for telling a way through the states."""
        scene = self.scenes[number]
        free = self.offers.first if scene.task is None else self.offers.to(scene)
        offers = [*free, *self.offers.to_with_sight(scene.task)]
        seen = [self._seen(offer, live, key_holder) for offer in offers]
        return [
            (describe(offer.command), self._give(number, offer, sight))
            for offer, sight in zip(offers, seen, strict=True)
        ]

    def _give(self, number: int, offer: Offer, seen: Evidence, now: int = NOW) -> int:
        scene = self.scenes[number]
        try:
            after = self._after(scene, offer, seen, now)
            return number if after is None else self.number_of(after, now)
        except Violation as violation:
            violation.add_note(f"{describe(offer.command)} with {seen}")
            raise

    def _after(self, scene: Scene, offer: Offer, seen: Evidence, now: int) -> Scene | None:
        """What the scene becomes; nothing if nothing moves."""
        actor = NEIGHBOUR_TASK if offer.is_neighbours else scene.task
        seen = beside(scene, offer.command, seen, self.cards)
        decision = machine.decide(actor, offer.command, now, self.world.limits, seen)
        after = take(replace(scene, task=actor), offer.command, decision, now, self.world.limits, seen)
        if offer.is_neighbours:
            return replace(after, task=scene.task)
        self._check_spawn(scene.task, decision)
        self._note(scene.task, offer, decision, after.task, now)
        is_moved = decision.facts or decision.messages or decision.closed
        return after if is_moved and decision.refusal is None else None

    def _check_spawn(self, task: Task | None, decision: Decision) -> None:
        """A replay's new task is a task like any other that was just submitted."""
        if decision.spawn is None or task is None:
            return
        must(decision.spawn.task_id != task.id, "a replay into itself")
        answer = machine.decide(None, decision.spawn, NOW, self.world.limits)
        new = take(Scene(), decision.spawn, answer, NOW, self.world.limits, Evidence()).task
        must(new is not None and new.replay_of == task.id, "a replay that does not say of what")

    def _note(
        self, task: Task | None, offer: Offer, decision: Decision, after: Task | None, now: int
    ) -> None:
        before = "no task" if task is None else task.status
        is_kept = decision.messages or decision.closed
        moved = "facts" if decision.facts else "kept" if is_kept else "nothing"
        self.cells[before, offer.cell].add("refused" if decision.refusal is not None else moved)
        self.fact_types.update([fact.type for fact in decision.facts])
        if task is None or after is None or decision.refusal is not None or not decision.facts:
            return
        fired = isinstance(offer.command, c.ClockFired)
        cause = rule_due(task, now) if fired else type(offer.command).__name__
        self.changes.add((before, after.status, cause or ""))

    def _firings_to_an_end(self, number: int) -> int:
        """How often clocks must fire, and nothing else happen, until the task ends or a person holds it."""
        way: list[int] = []
        known = self._firings_left
        while number not in known:
            task = self.scenes[number].task
            if task is None or task.is_ended or task.held_since is not None:
                known[number] = 0
                break
            way.append(number)
            must(len(way) <= LONGEST_WAY_TO_AN_END, f"a {task.status} task never ends by clocks alone")
            number = self._fire(number, task.clock_at)
        for distance, passed in enumerate(reversed(way), known[number] + 1):
            known[passed] = distance
            self.longest_way = max(self.longest_way, distance)
        return known[number]

    def _fire(self, number: int, clock_at: int | None) -> int:
        must(clock_at is not None, "there is no clock to fire")
        command = c.ClockFired(command_id="x", namespace="n", task_id="t", actor="pmo")
        return self._give(number, Offer(command, "ClockFired"), ANYTHING, clock_at or NOW)
