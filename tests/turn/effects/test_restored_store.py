"""A store that was restored from a backup does not know what was done outside since."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from endwell import NOT_DONE, AsyncHandle, Context, Done, NotDone
from endwell.app import Node
from endwell.operate.transfer.exporting import export
from endwell.operate.transfer.importing import import_lines, mark_restored
from endwell.runtime import SystemClock
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually
from tests.turn.outside_calls import QUICK_EFFECTS


class Outside:
    """What was done outside; no restore takes it back."""

    def __init__(self) -> None:
        self.charges: list[str] = []
        self.asked: list[str] = []
        self.refused: list[str] = []

    def charge(self, order: str) -> str:
        self.charges.append(order)
        return f"receipt for {order}"

    def charge_later(self, order: str) -> str:
        """Says of its first call that it did nothing."""
        if not self.refused:
            self.refused.append(order)
            raise NotDone("not yet")
        return self.charge(order)

    def find(self, key: str, order: str) -> Any:
        self.asked.append(order)
        return Done(f"receipt for {order}") if order in self.charges else NOT_DONE


def register(world: World, outside: Outside, *, can_look: bool = True) -> None:
    @world.app.agent("payer")
    async def payer(ctx: Context, order: str) -> Any:
        reconcile = outside.find if can_look else None
        return await ctx.effect(
            "pay", outside.charge, order, key=f"pay:{order}", reconcile=reconcile, timeout=0.3
        )

    @world.app.agent("patient", retries=1, delays=[0.5])
    async def patient(ctx: Context, order: str) -> Any:
        return await ctx.effect(
            "pay", outside.charge_later, order, key=f"pay:{order}", reconcile=outside.find, timeout=0.3
        )

    @world.app.agent("sender")
    async def sender(ctx: Context, order: str) -> str:
        return (await world.client.submit("payer", order)).id

    @world.app.agent("boss")
    async def boss(ctx: Context, order: str) -> Any:
        return await ctx.call("payer", order)


@pytest.fixture
async def before(store_url: str) -> AsyncIterator[World]:
    async with World(store_url, settings=QUICK_EFFECTS, clock=SystemClock()) as world:
        yield world


@pytest.fixture
def restored_url(store_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """An empty store of the other kind."""
    if store_url.startswith("sqlite"):
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'restored.db'}"


def restore(backup: Path, path: Path) -> None:
    shutil.copy(backup, path)
    for rest in path.parent.glob(f"{path.name}-*"):
        rest.unlink()


async def is_blocked(node: Node) -> bool:
    held = await node.store.tasks_page(node.app.namespace, status="blocked")
    return [task.reason for task in held] == ["effect_unknown"]


@pytest.mark.parametrize("can_look", [True, False])
@pytest.mark.parametrize("agent", ["payer", "boss"])
async def test_an_effect_made_since_the_export_is_not_repeated_by_the_imported_store(
    before: World, restored_url: str, agent: str, can_look: bool
) -> None:
    outside = Outside()
    register(before, outside)
    await before.registered("payer", "boss")
    handle = await before.submitted(agent, "o-1")
    lines: list[bytes] = []
    await export(before.store, [before.namespace], lines.append)
    await before.working()
    assert await handle.result(PATIENCE_SECONDS) == "receipt for o-1"

    async with World(restored_url, settings=QUICK_EFFECTS, clock=SystemClock()) as after:
        after.app.namespace = after.namespace = before.namespace
        node = await after.another_node()
        whole = b"".join(lines).splitlines(keepends=True)
        await import_lines(node.store, lambda: whole, after.app.runtime.ids.new)
        register(after, outside, can_look=can_look)
        await after.working(node)
        again = AsyncHandle(node.client, await node.store.task(before.namespace, handle.id))
        if can_look:
            assert await again.result(PATIENCE_SECONDS) == "receipt for o-1"
        else:
            await eventually(lambda: is_blocked(node))
            await node.client.settle_effect("pay:o-1", "done", "by hand", by="ada")
            assert await again.result(PATIENCE_SECONDS) == "by hand"
        fresh = await node.client.submit("payer", "o-2")
        assert await fresh.result(PATIENCE_SECONDS) == "receipt for o-2"
    assert outside.charges == ["o-1", "o-2"]
    assert outside.asked == (["o-1"] if can_look else [])


async def test_a_restored_file_is_declared_and_then_asks_before_it_repeats(tmp_path: Path) -> None:
    outside = Outside()
    path, backup = tmp_path / "store.db", tmp_path / "backup.db"
    async with World(f"sqlite:///{path}", settings=QUICK_EFFECTS, clock=SystemClock()) as world:
        namespace = world.namespace
        register(world, outside)
        await world.registered("payer", "boss")
        done, open_one = await world.submitted("payer", "o-1"), await world.submitted("payer", "o-3", delay=2)
        await world.sql(f"VACUUM INTO '{backup}'")
        await world.working()
        assert await done.result(PATIENCE_SECONDS) == "receipt for o-1"
    restore(backup, path)
    async with World(f"sqlite:///{path}", settings=QUICK_EFFECTS, clock=SystemClock()) as world:
        world.app.namespace = world.namespace = namespace
        node = await world.another_node()
        await mark_restored(node.store, [namespace], world.app.runtime.ids.new, actor="ada")
        register(world, outside)
        await world.working(node)
        for each, order in ((done, "o-1"), (open_one, "o-3")):
            again = AsyncHandle(node.client, await node.store.task(namespace, each.id))
            assert await again.result(PATIENCE_SECONDS) == f"receipt for {order}"
    assert outside.charges == ["o-1", "o-3"], "the second was not done, and is done once"
    assert outside.asked[0] == "o-1"


@asynccontextmanager
async def restored_from(
    before: World, lines: list[bytes], url: str, outside: Outside
) -> AsyncIterator[World]:
    """A worker at a store that has the exported record, in a world where more was done since."""
    async with World(url, settings=QUICK_EFFECTS, clock=SystemClock()) as after:
        after.app.namespace = after.namespace = before.namespace
        after.node = await after.another_node()
        whole = b"".join(lines).splitlines(keepends=True)
        await import_lines(after.store, lambda: whole, after.app.runtime.ids.new)
        register(after, outside)
        await after.working()
        yield after


async def test_an_effect_that_was_not_done_at_the_backup_is_asked_about_before_it_is_tried_again(
    before: World, restored_url: str
) -> None:
    outside = Outside()
    lines: list[bytes] = []
    register(before, outside)
    await before.working()
    handle = await before.submitted("patient", "o-1")

    async def is_not_done() -> bool:
        effect = await before.store.effect(before.namespace, "pay:o-1")
        return effect is not None and effect.status == "not_done"

    await eventually(is_not_done)
    await export(before.store, [before.namespace], lines.append)
    assert await handle.result(PATIENCE_SECONDS) == "receipt for o-1"
    assert outside.asked == []

    async with restored_from(before, lines, restored_url, outside) as after:
        again = AsyncHandle(after.client, await after.store.task(before.namespace, handle.id))
        assert await again.result(PATIENCE_SECONDS) == "receipt for o-1"
    assert (outside.charges, outside.asked) == (["o-1"], ["o-1"])


async def test_a_task_that_a_restored_task_submits_again_asks_too(before: World, restored_url: str) -> None:
    outside = Outside()
    lines: list[bytes] = []
    register(before, outside)
    await before.registered("payer", "sender")
    handle = await before.submitted("sender", "o-1")
    await export(before.store, [before.namespace], lines.append)
    await before.working()
    await before.client.task(await handle.result(PATIENCE_SECONDS))
    await eventually(lambda: outside.charges == ["o-1"])

    async with restored_from(before, lines, restored_url, outside) as after:
        again = AsyncHandle(after.client, await after.store.task(before.namespace, handle.id))
        resubmitted = await after.client.task(await again.result(PATIENCE_SECONDS))
        assert await resubmitted.result(PATIENCE_SECONDS) == "receipt for o-1"
    assert (outside.charges, outside.asked) == (["o-1"], ["o-1"])
