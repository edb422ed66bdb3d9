"""The one door: batches, what the database itself refuses, and one bad command among good ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from endwell.machine.clocks import arm
from endwell.machine.decision import Decision
from endwell.model import commands as c
from endwell.store import door
from endwell.store.group_commit import BATCH_LIMIT
from tests.machine.planting import change_rule
from tests.store.world import World


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many commands each transaction decided."""
    sizes: list[int] = []
    real = door.outcome

    def counted(commands: Any, *rest: Any) -> Any:
        sizes.append(len(commands))
        return real(commands, *rest)

    monkeypatch.setattr(door, "outcome", counted)
    return sizes


async def test_commands_that_wait_together_share_a_transaction(world: World, batches: list[int]) -> None:
    replies = await asyncio.gather(*(world.store.commit([world.submit()]) for _ in range(100)))
    assert all(reply.is_new for (reply,) in replies)
    assert sum(batches) == 100
    assert len(batches) <= 10


async def test_a_transaction_has_a_size_limit(world: World, batches: list[int]) -> None:
    replies = await world.store.commit([world.submit() for _ in range(2 * BATCH_LIMIT + 10)])
    assert len({reply.unwrap().id for reply in replies}) == 2 * BATCH_LIMIT + 10
    assert max(batches) <= BATCH_LIMIT


async def test_a_heartbeat_is_committed_before_other_commands_that_wait(world: World) -> None:
    await world.open_session()
    commands = [world.submit() for _ in range(20 * BATCH_LIMIT)]
    bulk = asyncio.create_task(world.store.commit(commands))
    await asyncio.sleep(0)
    await world.store.commit_one(world.heartbeat())
    assert not bulk.done()
    assert len(await bulk) == 20 * BATCH_LIMIT


async def test_a_key_held_in_the_batch_is_seen_held_by_the_commands_after(
    world: World, batches: list[int]
) -> None:
    await world.open_session()
    await world.queued_task(agent_key="k")
    second = await world.queued_task(agent_key="k")
    claim = world.to(c.Claim, second, session_id="s1", attempt_id=world.new_id())
    batches.clear()
    replies = await world.store.commit([world.claim_next(), world.submit(agent_key="k"), claim])
    assert len(replies[0].taken) == 1
    assert replies[1].is_new
    assert replies[2].refusal is not None
    assert replies[2].refusal.code == "key_is_held"
    assert batches == [3]  # known beforehand, not found out by failing


async def test_replies_come_back_in_the_order_of_the_commands(world: World) -> None:
    commands = [world.submit() for _ in range(30)]
    replies = await world.store.commit(commands)
    assert [reply.unwrap().id for reply in replies] == [command.task_id for command in commands]


async def test_a_caller_that_gives_up_waiting_does_not_disturb_the_others(world: World) -> None:
    impatient = asyncio.create_task(world.store.commit([world.submit()]))
    patient = asyncio.create_task(world.store.commit([world.submit()]))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient)[0].is_new
    assert (await world.reply(world.submit())).is_new


# the database itself


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE tasks SET clock_at = NULL, clock_rule = NULL",
        "UPDATE tasks SET clock_at = NULL, status = 'suspended'",
        "UPDATE tasks SET attempt_id = 'a'",
    ],
)
async def test_the_database_itself_refuses_a_task_that_could_hang(world: World, change: str) -> None:
    task = await world.queued_task()
    with pytest.raises(Exception, match=r"no_task_without_a_clock|only_a_running_task_is_held"):
        await world.database.sql(change)
    assert await world.task(task) == task


async def test_the_database_itself_refuses_to_take_in_a_task_that_could_hang(world: World) -> None:
    task = await world.queued_task()
    names = ", ".join(task.__struct_fields__)
    copied = names.replace("clock_at", "NULL").replace("clock_rule", "NULL").replace(" id,", " 'copy',")
    with pytest.raises(Exception, match="no_task_without_a_clock"):
        await world.database.sql(f"INSERT INTO tasks ({names}) SELECT {copied} FROM tasks")
    assert await world.store.find_task("default", "copy") is None


async def test_the_log_takes_no_second_event_of_one_version(world: World) -> None:
    await world.queued_task()
    names = "namespace, task_id, version, type, schema, command_id, actor, at, epoch, data, hash"
    with pytest.raises(Exception, match=r"(?i)unique"):
        await world.database.sql(f"INSERT INTO events ({names}) SELECT {names} FROM events")


# one bad command


async def test_a_command_that_breaks_the_machine_fails_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> Decision:
        raise ZeroDivisionError("a defect")

    change_rule(monkeypatch, c.Cancel, then=explode)
    task = await world.queued_task()
    before, broken, after = await world.store.commit(
        [world.submit(), world.to(c.Cancel, task), world.submit()]
    )
    assert before.is_new
    assert after.is_new
    assert broken.refusal is not None
    assert "a defect" in broken.refusal.message
    assert await world.task(task) == task


async def test_a_command_that_the_database_refuses_fails_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clockless = lambda task: (None, None) if task.agent == "poison" else arm(task)  # noqa: E731
    monkeypatch.setattr("endwell.machine.evolve.arm", clockless)
    commands = [world.submit(), world.submit(agent="poison"), world.submit(key="k"), world.submit(key="k")]
    good, bad, keyed, same = await world.store.commit(commands)
    assert good.is_new
    assert bad.refusal is not None
    assert bad.refusal.code == "constraint"
    assert keyed.is_new
    assert same.unwrap() == keyed.unwrap()
    assert await world.store.find_task("default", commands[1].task_id) is None
    assert await world.problems() == []


@pytest.mark.parametrize(
    "unstorable", [{"priority": 2**70}, {"owner": "lone \udc80"}], ids=["huge number", "lone surrogate"]
)
async def test_a_value_that_cannot_be_stored_fails_alone(world: World, unstorable: dict[str, Any]) -> None:
    commands = [world.submit(), world.submit(**unstorable), world.submit()]
    before, bad, after = await world.store.commit(commands)
    assert before.is_new
    assert after.is_new
    assert bad.refusal is not None
    assert await world.store.find_task("default", commands[1].task_id) is None


async def test_a_closed_store_says_so(world: World) -> None:
    other = await world.another_store()
    await other.close()
    with pytest.raises(Exception, match=r"not open|closed"):
        await other.commit([world.submit()])


async def test_a_store_tells_how_durable_it_is(world: World) -> None:
    settings = await world.store.settings()
    assert settings["store"] in ("sqlite", "postgresql")
    assert settings.get("synchronous", 2) == 2  # 2 is FULL
    assert settings.get("isolation", "read committed") == "read committed"
