"""Very many waits of one turn: each is a row, and an answer concerns one of them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from endwell import AsyncHandle, BadInput, Context, TaskFailed
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.moments import SECOND
from endwell.model.task import Task, has_wait_rows, open_waits, waits_of
from endwell.policy import waiting
from endwell.store import wait_rows
from endwell.store.reads.side_rows import KeptWait
from endwell.store.working_set import replay
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World

MANY = 150
"""More than a task's row keeps, and more than one event lists."""
LARGEST_EVENT = 32_768


@pytest.fixture
async def boss(world: World) -> World:
    @world.app.agent("leaf")
    async def leaf(number: int) -> int:
        return number

    @world.app.agent("boss")
    async def boss(ctx: Context, count: int) -> int:
        return sum(await ctx.gather(*(ctx.call("leaf", number) for number in range(count))))

    @world.app.agent("clerk", retries=0)
    async def clerk(ctx: Context, count: int) -> Any:
        return await ctx.gather(*(ctx.tool("look", number, timeout=100 + number) for number in range(count)))

    return world


async def suspended(world: World, count: int = MANY) -> tuple[AsyncHandle, Task]:
    """A task that waits for many tools that no worker has."""
    await world.working()
    handle = await world.submitted("clerk", count)
    return handle, await world.in_status(handle, "suspended")


def answer(world: World, task: Task, number: int) -> c.Answer:
    return c.Answer(
        command_id=world.app.runtime.ids.new(),
        namespace=world.namespace,
        task_id=task.id,
        tool_call_id=f"{task.id}.s.1:(1.{number})look#1",
        content=b"1",
        content_hash="h",
    )


async def is_fold_of_log(world: World, task_id: str) -> bool:
    task = await world.store.task(world.namespace, task_id)
    events = await world.store.events_of_task(world.namespace, task_id)
    return replay([event for event in events if event.version <= task.version]) == task


async def test_many_calls_are_answered_and_the_row_is_the_fold_of_small_events(boss: World) -> None:
    await boss.working()
    handle = await boss.submitted("boss", MANY)
    assert await handle.result(PATIENCE_SECONDS) == sum(range(MANY))
    events = await boss.store.events_of_task(boss.namespace, handle.id)
    assert max(len(event.data) for event in events) < LARGEST_EVENT
    facts = [event.fact for event in events]
    assert [fact.first for fact in facts if isinstance(fact, f.WaitsAdded)] == [0, 100]
    assert sum(event.type == "wait.answered" for event in events) == MANY
    assert await is_fold_of_log(boss, handle.id)


async def rows_of_waits(world: World, task: Task) -> list[KeptWait]:
    rows = world.store.side_rows(world.namespace, task.id[:-1], f"{task.id}/")
    return [row async for _, row in rows if isinstance(row, KeptWait) and row.task_id == task.id]


async def test_an_answer_reads_and_writes_one_wait(boss: World) -> None:
    handle, task = await suspended(boss)
    assert (has_wait_rows(task), open_waits(task), waits_of(task)) == (True, MANY, ())
    after = await boss.store.commit_one(answer(boss, task, 7))
    assert after.task is not None
    assert open_waits(after.task) == MANY - 1
    assert len(after.task.waits or "") < 20
    rows = await rows_of_waits(boss, task)
    changed = [row.tool_call_id for row in rows if row.wait_status != "waiting"]
    assert changed == [f"{task.id}.s.1:(1.7)look#1"]
    again = await boss.store.commit_one(answer(boss, task, 7))
    assert again.task is not None
    assert open_waits(again.task) == MANY - 1, "a second answer counts nothing down"
    assert await is_fold_of_log(boss, handle.id)


async def test_answers_of_one_batch_each_count_and_the_last_one_resumes_the_turn(boss: World) -> None:
    handle, task = await suspended(boss)
    replies = await boss.store.commit([answer(boss, task, number) for number in range(MANY)])
    statuses = [reply.task.status for reply in replies if reply.task is not None]
    assert statuses == ["suspended"] * (MANY - 1) + ["queued"]
    assert await handle.result(PATIENCE_SECONDS) == [1] * MANY
    assert await is_fold_of_log(boss, handle.id)


async def test_a_clock_that_is_too_early_is_set_to_the_next_deadline(boss: World) -> None:
    handle, task = await suspended(boss)
    first = task.wait_by
    assert first is not None
    await boss.store.commit([answer(boss, task, number) for number in range(3)])
    assert (await handle.task()).wait_by == first, "a lower bound: the answers have looked at no other wait"
    boss.clock.advance((first - await boss.store.now()) / SECOND)
    about = {"command_id": boss.app.runtime.ids.new(), "namespace": boss.namespace}
    await boss.store.commit_one(c.InjectTimeout(task_id=task.id, **about))
    assert (await handle.task()).wait_by == first + 3 * SECOND
    assert "timeout" not in [row.message_type for row in await _inbox(boss, task)]
    assert await is_fold_of_log(boss, handle.id)


async def test_overdue_waits_are_reported_in_parts_until_none_is_left(
    boss: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (wait_rows, "endwell.store.sqlite.row_reader", "endwell.store.postgres.row_reader"):
        target = module if isinstance(module, str) else module.__name__
        monkeypatch.setattr(f"{target}.MOST_OVERDUE", 20)
    handle, _ = await suspended(boss)
    boss.clock.advance(100 + MANY)
    with pytest.raises(TaskFailed):
        await handle.result(PATIENCE_SECONDS)
    events = await boss.store.events_of_task(boss.namespace, handle.id)
    facts = [event.fact for event in events]
    reported = [call for fact in facts if isinstance(fact, f.WaitExpired) for call in fact.reported]
    assert len(set(reported)) == len(reported) == MANY
    assert await is_fold_of_log(boss, handle.id)


async def test_more_waits_than_the_maximum_are_refused_before_anything_is_written(
    boss: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MOST_WAITS", 20)
    await boss.working()
    handle = await boss.submitted("boss", 21)
    with pytest.raises(TaskFailed) as caught:
        await handle.result(PATIENCE_SECONDS)
    assert "21 answers at once; at most 20 are possible" in str(caught.value)
    assert (await handle.task()).error is not None
    assert "too_many_waits" in ((await handle.task()).error or "")
    assert not await boss.store.children(boss.namespace, handle.id)
    assert "task.suspended" not in await boss.history(handle)


async def test_waits_that_an_older_release_put_into_the_row_are_answered_there(boss: World) -> None:
    """A suspended turn continues as an older release wrote it, however many waits it has."""
    usual = boss.app.limits
    boss.app.limits = replace(usual, waits_in_row=1_000)
    await boss.working(await boss.another_node())
    boss.app.limits = usual
    handle = await boss.submitted("clerk", 40)
    task = await boss.in_status(handle, "suspended")
    assert (len(waits_of(task)), has_wait_rows(task)) == (40, False)
    replies = await boss.store.commit([answer(boss, task, number) for number in range(40)])
    assert all(reply.refusal is None for reply in replies)
    assert await handle.result(PATIENCE_SECONDS) == [1] * 40
    assert await is_fold_of_log(boss, handle.id)


async def test_a_turn_that_was_held_waits_again_and_old_waits_count_nothing(boss: World) -> None:
    handle, task = await suspended(boss)
    await boss.store.commit_one(answer(boss, task, 0))
    about: dict[str, Any] = {"namespace": boss.namespace, "task_id": task.id, "actor": "ada"}
    await boss.store.commit_one(c.Block(command_id=boss.app.runtime.ids.new(), reason="look_at_it", **about))
    dropped = [row.wait_status for row in await rows_of_waits(boss, task)]
    assert sorted(set(dropped)) == ["applied", "dropped"]
    await boss.store.commit_one(answer(boss, task, 1))
    await boss.store.commit_one(c.Unblock(command_id=boss.app.runtime.ids.new(), **about))
    again = await boss.in_status(handle, "suspended")
    assert open_waits(again) == MANY - 2, "what was answered before is found"
    await boss.store.commit([answer(boss, again, number) for number in range(2, MANY)])
    assert await handle.result(PATIENCE_SECONDS) == [1] * MANY
    assert await is_fold_of_log(boss, handle.id)


async def _inbox(world: World, task: Task) -> list[Any]:
    return list(await world.store.inbox_page(world.namespace, task_id=task.id))


@pytest.fixture
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_BYTES", 20_000)


@pytest.mark.usefixtures("few_bytes")
@pytest.mark.parametrize("verb", ["tool", "call"])
async def test_more_bytes_than_a_turn_may_ask_with_are_refused_branch_by_branch(
    world: World, verb: str
) -> None:
    """The branches behind the maximum never wait: what they ask with does not lie in memory together."""
    refused: list[str] = []

    @world.app.agent("leaf")
    async def leaf(text: str) -> int:
        return len(text)

    @world.app.agent("asks", retries=0)
    async def asks(ctx: Context, count: int) -> Any:
        ask = {"tool": partial(ctx.tool, "look"), "call": partial(ctx.call, "leaf")}[verb]

        async def part() -> Any:
            try:
                return await ask("x" * 1_000)
            except BadInput as error:
                refused.append(error.code)
                raise

        return await ctx.gather(*(part for _ in range(count)))

    await world.working()
    handle = await world.submitted("asks", 50)
    with pytest.raises(TaskFailed, match="more than 20,000 bytes at once"):
        await handle.result(PATIENCE_SECONDS)
    assert refused == ["too_many_waits"] * 31
    assert not await world.store.children(world.namespace, handle.id)
    assert "task.suspended" not in await world.history(handle)


@pytest.mark.usefixtures("few_bytes")
async def test_what_a_gather_that_failed_would_have_asked_with_does_not_count(world: World) -> None:
    @world.app.agent("asks", retries=0)
    async def asks(ctx: Context) -> Any:
        for _ in range(5):
            with suppress(ZeroDivisionError):
                await ctx.gather(ctx.tool("look", "x" * 15_000), ctx.step("divide", lambda: 1 // 0))
        return await ctx.tool("look", "x" * 15_000)

    await world.working()
    await world.in_status(await world.submitted("asks"), "suspended")
