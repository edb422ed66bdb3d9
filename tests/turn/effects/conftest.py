"""A world in which effects end soon."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from endwell.runtime import SystemClock
from tests.support.world import World
from tests.turn.outside_calls import QUICK_EFFECTS


@pytest.fixture
async def effect_world(store_url: str) -> AsyncIterator[World]:
    """On each store, in real time."""
    async with World(store_url, settings=QUICK_EFFECTS, clock=SystemClock()) as world:
        yield world
