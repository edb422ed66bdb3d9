"""A breadth-first walk through every state of a small world, checking each state and each step.

    python -m tests.machine.walk.explore --states 3000000

States are distinct up to renaming: sessions are interchangeable, so are tasks, and of a task only what
canonical.py keeps counts. A violation is shown with a shortest way to it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.machine.walk.graph import ABSENT, Graph
from tests.machine.walk.telling import describe_scene
from tests.machine.walk.violation import Violation, must
from tests.machine.walk.world import World
from tests.machine.walk.worlds import LARGE, SMALL

BITS = 22  # room for the number of a task within the number of a state
MASK = (1 << BITS) - 1
BOTH_LEASES_HOLD = 0b11
SWAPPED_LEASES = (0b00, 0b10, 0b01, 0b11)


@dataclass(kw_only=True)
class Walk:
    """What has been found so far. `came_from` has every state, and a state before it on a shortest way."""

    graph: Graph
    came_from: dict[int, int] = field(default_factory=dict)
    depth: int = 0
    frontier: list[int] = field(default_factory=list)
    is_complete: bool = False
    violation: Violation | None = None
    path: list[str] = field(default_factory=list)

    @property
    def states(self) -> int:
        return len(self.came_from)


def explore(
    world: World, at_most: int = sys.maxsize, progress: Callable[[Walk], None] = lambda _: None
) -> Walk:
    """Walk until every state, or this number of states, has been seen."""
    walk = Walk(graph=Graph(world))
    start = _packed(ABSENT, ABSENT, BOTH_LEASES_HOLD)
    walk.came_from[start] = start
    walk.frontier = [start]
    while walk.frontier and walk.states < at_most and walk.violation is None:
        _one_step_further(walk, at_most)
        progress(walk)
    walk.is_complete = not walk.frontier
    return walk


def _one_step_further(walk: Walk, at_most: int) -> None:
    found: list[int] = []
    came_from = walk.came_from
    for state in walk.frontier:
        try:
            for new in _successors(walk.graph, state):
                if new not in came_from:
                    came_from[new] = state
                    found.append(new)
        except Violation as violation:
            walk.violation, walk.path = violation, _path_to(walk, state)
            return
        if len(came_from) >= at_most:
            break
    walk.frontier = found
    walk.depth += 1


def _successors(graph: Graph, state: int) -> Iterator[int]:
    """One command to one task, one tick of time, or one lease that lapses or is renewed."""
    live, second, first = state & 3, state >> 2 & MASK, state >> 2 + BITS
    for moved in graph.moves(first, live, _key_holder(graph, first, second)):
        yield _state(graph, moved, second, live)
    if graph.world.tasks == 2:
        for moved in graph.moves(second, live, _key_holder(graph, second, first)):
            yield _state(graph, first, moved, live)
    yield _state(graph, graph.after_a_tick(first), graph.after_a_tick(second), live)
    if not graph.world.leases_hold:
        yield _state(graph, first, second, live ^ 0b01)
        yield _state(graph, first, second, live ^ 0b10)


def _key_holder(graph: Graph, task: int, other: int) -> int:
    if graph.has_turn[other]:
        return 2
    return 1 if graph.has_turn[task] else 0


def _state(graph: Graph, first: int, second: int, live: int) -> int:
    """The number of a state, the same for all that differ only in what things are called."""
    if graph.has_turn[first] and graph.has_turn[second]:
        must(False, "two turns of one agent key are open at once")
    if graph.world.tasks == 2 and first < second:
        first, second = second, first
    state = _packed(first, second, live)
    mirrored, other = graph.with_sessions_swapped(first), graph.with_sessions_swapped(second)
    if graph.world.tasks == 2 and mirrored < other:
        mirrored, other = other, mirrored
    return min(state, _packed(mirrored, other, SWAPPED_LEASES[live]))


def _packed(first: int, second: int, live: int) -> int:
    return (first << BITS | second) << 2 | live


def _path_to(walk: Walk, state: int) -> list[str]:
    """The commands on a shortest way to the state, and where each of them led."""
    steps: list[str] = []
    before = walk.came_from[state]
    while before != state:
        steps.append(f"{_command_between(walk.graph, before, state)} -> {_described(walk.graph, state)}")
        before, state = walk.came_from[before], before
    return [_described(walk.graph, state), *reversed(steps)]


def _command_between(graph: Graph, before: int, after: int) -> str:
    return next((name for name, state in _named_successors(graph, before) if state == after), "?")


def _named_successors(graph: Graph, state: int) -> Iterator[tuple[str, int]]:
    live, second, first = state & 3, state >> 2 & MASK, state >> 2 + BITS
    yield "a tick", _state(graph, graph.after_a_tick(first), graph.after_a_tick(second), live)
    for session, bit in enumerate((0b01, 0b10), 1):
        lapsed = "lapses" if live & bit else "is renewed"
        yield f"the lease of s{session} {lapsed}", _state(graph, first, second, live ^ bit)
    for name, moved in graph.named_moves(first, live, _key_holder(graph, first, second)):
        yield name, _state(graph, moved, second, live)
    for name, moved in graph.named_moves(second, live, _key_holder(graph, second, first)):
        yield name, _state(graph, first, moved, live)


def _described(graph: Graph, state: int) -> str:
    live, second, first = state & 3, state >> 2 & MASK, state >> 2 + BITS
    tasks = [first, second][: graph.world.tasks]
    leases = f"{live.bit_count()} of 2 leases hold"
    return " | ".join([*(describe_scene(graph.scenes[number]) for number in tasks), leases])


def report(walk: Walk) -> list[str]:
    """What came of a walk, in sentences."""
    name = walk.graph.world.name
    if walk.violation is None:
        whole = "every state" if walk.is_complete else "cut off"
        scenes = len(walk.graph.scenes) - 1
        return [f"{name}: {walk.states:,} states of {scenes:,} distinct tasks, depth {walk.depth}, {whole}"]
    notes = getattr(walk.violation, "__notes__", [])
    return [f"{name}: {walk.violation}", *(f"  {line}" for line in (*walk.path, *notes))]


def _progress(say: Callable[[str], None]) -> Callable[[Walk], None]:
    began = time.monotonic()

    def show(walk: Walk) -> None:
        rate = walk.states / max(time.monotonic() - began, 0.001)
        frontier = f"frontier {len(walk.frontier):,}, depth {walk.depth}"
        say(f"{walk.graph.world.name}: {walk.states:,} states, {rate:,.0f}/s, {frontier}")

    return show


def main(arguments: list[str] | None = None) -> int:
    """Walk through the small worlds, then through the large ones as far as the number of states goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--states", type=int, default=3_000_000, help="how many distinct states to visit")
    left: int = parser.parse_args(arguments).states
    total = 0

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    for world in (*SMALL, *LARGE):
        walk = explore(world, left - total, _progress(say))
        say("\n".join(report(walk)))
        total += walk.states
        if walk.violation is not None:
            return 1
        if total >= left:
            break
    say(f"{total:,} distinct states, nothing violated")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
