"""The worlds that tests of this room work in."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from endwell.runtime import SystemClock
from tests.support.fixtures import (
    clerk,
    quick_world,
    shared_postgres_url,
    sqlite_url,
    sqlite_world,
    store_url,
    world,
)
from tests.support.world import World
from tests.turn.outside_calls import QUICK_EFFECTS

__all__ = [
    "clerk",
    "quick_world",
    "shared_postgres_url",
    "sqlite_url",
    "sqlite_world",
    "store_url",
    "world",
]


@pytest.fixture
async def effect_world(store_url: str) -> AsyncIterator[World]:
    """On each store, in real time."""
    async with World(store_url, settings=QUICK_EFFECTS, clock=SystemClock()) as world:
        yield world
