"""Dead letters are listed by their last change, so that a follower can read on from its place."""

from __future__ import annotations

from endwell.model import commands as c
from endwell.model.task import ErrorInfo, Task
from endwell.store.reads.side_rows import DeadLetter
from tests.store.world import World

HOPELESS = ErrorInfo(code="bad", message="no", retryable=False)


async def dead(world: World) -> Task:
    task = await world.running_task()
    await world.do(world.fail(task, HOPELESS))
    world.advance(1)
    return task


async def followed(world: World, since: int, page: int) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    after = ""
    while some := await world.store.letters_changed("default", since, after, page):
        found += some
        since, after = some[-1].changed_at, some[-1].task_id
    return found


async def test_dead_letters_are_paged_by_their_last_change(world: World) -> None:
    first, second, third = [await dead(world) for _ in range(3)]
    await world.do(world.to(c.Abandon, second))
    found = await followed(world, 0, 10)
    assert [letter.task_id for letter in found] == [first.id, third.id, second.id]
    assert await followed(world, 0, 1) == await followed(world, 0, 2) == found
    assert [letter.status for letter in found] == ["open", "open", "abandoned"]
    since = found[-1].changed_at
    assert [letter.task_id for letter in await followed(world, since, 10)] == [second.id]
    assert await followed(world, since + 1, 10) == []
