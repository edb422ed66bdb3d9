"""The worlds that tests of this room work in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from endwell import Context, Fail
from tests.pmo.relaying import QUICKLY
from tests.servers.webhook import Receiver
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
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
async def relayed(store_url: str, receiver: Receiver) -> AsyncIterator[World]:
    """A world whose PMOs send to a webhook, with agents that succeed, fail, and take two turns."""
    async with World(store_url, settings={**QUICKLY, "relay.url": receiver.url}) as world:

        @world.app.agent("clerk")
        async def clerk(ctx: Context, order: Any = None) -> str:
            await ctx.step("price", lambda: 15)
            return "done"

        @world.app.agent("picky", retries=0)
        async def picky(ctx: Context) -> None:
            raise Fail("not today")

        @world.app.agent("asker")
        async def asker(ctx: Context) -> Any:
            return await ctx.tool("oracle", {"q": 1})

        @world.app.agent("drafter", retries=0)
        async def drafter(ctx: Context) -> None:
            await ctx.draft("half of it")
            raise Fail("the other half is missing")

        await world.registered("clerk", "picky", "asker", "drafter")
        yield world
