"""Functions that stand for the outside world, and what the store knows of their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from endwell import AsyncHandle, Context
from endwell.model.effect import Effect
from tests.support.world import QUICK, World


class Counting:
    """Counts its calls: what a step's function did in the outside world."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, value: Any = None) -> Any:
        self.calls.append(value)
        return value


async def recorded(world: World, handle: AsyncHandle) -> list[Any]:
    return await world.facts(handle, "step.recorded")


async def is_ended_after_a_moment(world: World, handle: AsyncHandle) -> bool:
    """Time stands still in these worlds: a retry begins when the test lets it pass."""
    world.clock.advance(0.05)
    return (await handle.task()).is_ended


QUICK_EFFECTS = {**QUICK, "worker.effect_margin_seconds": 0.1, "worker.step_timeout_seconds": 5.0}


async def effect_of(world: World, key: str) -> Effect:
    effect = await world.store.effect(world.namespace, key)
    assert effect is not None
    return effect


async def effect_events(world: World, handle: AsyncHandle) -> list[str]:
    return [kind for kind in await world.history(handle) if kind.startswith("effect.")]


class Pay:
    """A payment whose call fails after the money has gone, or before; and a `reconcile` that can look."""

    def __init__(self, *, pays: bool = True, says: Any = None, fails: int = 1) -> None:
        self.pays = pays
        self.says = says
        self.fails = fails
        self.calls = 0
        self.asked: list[tuple[Any, ...]] = []
        self.asked_at = 0
        self.clock: Callable[[], int] = lambda: 0

    def __call__(self, amount: int) -> str:
        self.calls += 1
        if self.calls <= self.fails:
            raise ConnectionError("the line is dead")
        return f"paid {amount}"

    def find(self, key: str, amount: int) -> Any:
        self.asked.append((key, amount))
        self.asked_at = self.clock()
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


def payer(world: World, pay: Pay, *, can_look: bool = True, retries: int = 0, **options: Any) -> None:
    @world.app.agent("payer", retries=retries, delays=[0.01])
    async def run(ctx: Context) -> Any:
        reconcile = pay.find if can_look else None
        return await ctx.effect("pay", pay, 5, key="order-1", reconcile=reconcile, **options)
