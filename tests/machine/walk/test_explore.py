"""Every state of a few small worlds, in every run."""

from __future__ import annotations

import pytest

from endwell.machine import clocks, evolve
from endwell.model import facts as f
from endwell.model import status as s
from tests.machine import lifecycle
from tests.machine.walk.cells import ALL_CELLS, IMPOSSIBLE, accepting_cells
from tests.machine.walk.explore import Walk, explore, main, report
from tests.machine.walk.world import World
from tests.machine.walk.worlds import CIRCLES, INSIDE, LOW_GUARD, ONE_TASK, RULES_OFF, SMALL, TWO_TASKS

# how many states each world must have: together well over the 300,000 that every run is to visit
AT_LEAST = {
    **dict.fromkeys((world.name for world in SMALL), 4_000),
    ONE_TASK.name: 30_000,
    TWO_TASKS.name: 600_000,
    LOW_GUARD.name: 500_000,
    RULES_OFF.name: 10_000,
    CIRCLES.name: 1_000,
}


def whole(world: World) -> Walk:
    """A walk to the last state of the world."""
    walk = explore(world)
    assert walk.violation is None, "\n".join(report(walk))
    assert walk.is_complete
    assert walk.states >= AT_LEAST[world.name]
    return walk


@pytest.mark.covers("S2.16", "S2.17", "S4.12", "T12", "T18")
@pytest.mark.parametrize("world", [TWO_TASKS, LOW_GUARD, RULES_OFF], ids=lambda world: world.name)
def test_nothing_is_violated_in_any_state_of(world: World) -> None:
    whole(world)


@pytest.mark.covers("S2.16", "S2.17", "S4.12", "T2", "T6", "T12", "T15", "T18", "T20")
def test_one_task_meets_every_command_in_every_status() -> None:
    graphs = [whole(world).graph for world in (ONE_TASK, *INSIDE)]

    cells = {cell for graph in graphs for cell in graph.cells}
    assert cells | set(IMPOSSIBLE) == ALL_CELLS
    assert not cells & set(IMPOSSIBLE)
    assert {cell for graph in graphs for cell in graph.accepted} == accepting_cells()
    assert {fact for graph in graphs for fact in graph.fact_types} == set(f.BY_TYPE)
    _the_lifecycle_page_draws({change for graph in graphs for change in graph.changes})


def _the_lifecycle_page_draws(changes: set[tuple[str, str, str]]) -> None:
    drawn = {(a, b, cause) for a, b, causes in lifecycle.TRANSITIONS for cause in causes}
    assert drawn == {(a, b, cause) for a, b, cause in changes if a != b}
    staying = {cause for a, b, cause in changes if a == b}
    assert set(clocks.RULE_NAMES) <= {cause for _, _, cause in drawn} | staying


def test_the_walks_visit_300_000_states() -> None:
    assert sum(AT_LEAST.values()) >= 300_000


def test_every_fact_has_its_fold() -> None:
    assert {*evolve._FOLDS, f.TaskCreated} == set(f.BY_TYPE.values())


def test_every_status_is_either_live_or_ended() -> None:
    assert set(s.LIVE) | s.TERMINAL == set(s.ALL)
    assert not set(s.LIVE) & s.TERMINAL


def test_the_longer_walk_reports_its_progress(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--states", "2000"]) == 0

    said = capsys.readouterr().out
    assert "frontier" in said
    assert "/s, " in said
    assert "nothing violated" in said
