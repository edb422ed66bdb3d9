"""The beginning of every small world of the task machine; other tests walk them to their end."""

from __future__ import annotations

import pytest

from tests.machine.walk.explore import explore, report
from tests.machine.walk.world import World
from tests.machine.walk.worlds import SMALL

STATES = 700


@pytest.mark.parametrize("world", SMALL, ids=lambda world: world.name)
def test_nothing_is_violated_at_the_beginning_of(world: World) -> None:
    walk = explore(world, STATES)

    assert walk.violation is None, "\n".join(report(walk))
