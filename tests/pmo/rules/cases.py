"""The clock rules as a table: how a task gets there, when the rule acts, and which rival it races."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.store.log import Event
from tests.store.world import World

Stage = Callable[[World], Awaitable[Task]]
Rival = Callable[[World, Task], c.TaskCommand]
DAY = 86_400


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`after`: seconds until the rule is due. `acts` and `spared` are (status, reason) when it came first or
    second; `loses` is the code with which a rival that came second is refused."""

    rule: str
    stage: Stage
    after: float
    rival: Rival
    acts: tuple[str, str | None]
    spared: tuple[str, str | None]
    loses: str | None = None
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or self.rule


async def queued(world: World, **options: Any) -> Task:
    await world.open_session(lease=10 * DAY)
    return await world.queued_task(**options)


async def dispatched(world: World, **options: Any) -> Task:
    return await world.do(world.to(c.Dispatch, await queued(world, **options)))


async def running(world: World, **options: Any) -> Task:
    return await world.running_task(**options)


async def suspended(world: World, **options: Any) -> Task:
    return await world.suspended_task(**options)


async def unapproved(world: World, **options: Any) -> Task:
    return await queued(world, approval_within=60 * SECOND, **options)


async def cooling(world: World, **options: Any) -> Task:
    task = await queued(world, **options)
    return await world.do(world.to(c.Block, task, reason="cooling", cooldown=60 * SECOND))


async def held(world: World, **options: Any) -> Task:
    """A task that a person has accepted to hold."""
    task = await queued(world, **options)
    await world.do(world.to(c.Block, task, reason="look at it", owner="ada"))
    return await world.do(world.to(c.Assign, task, owner="ada"))


async def asking(world: World) -> Task:
    """A task whose turn waits for an approval of three days."""
    task = await world.running_task(deadline=9 * DAY * SECOND)
    ask = world.call(task, "ask", kind="approval", within=3 * DAY)
    return await world.do(world.to(c.Suspend, task, calls=(ask,)))


def claim(world: World, task: Task) -> c.TaskCommand:
    return world.to(c.Claim, task, session_id="s1", attempt_id=world.new_id())  # type: ignore[no-any-return]


def finish(world: World, task: Task) -> c.TaskCommand:
    return world.finish(task)  # type: ignore[no-any-return]


def progress(world: World, task: Task) -> c.TaskCommand:
    return world.to(c.Progress, task)  # type: ignore[no-any-return]


def answer(world: World, task: Task) -> c.TaskCommand:
    return world.answer(task)  # type: ignore[no-any-return]


def approve(world: World, task: Task) -> c.TaskCommand:
    return world.to(c.Approve, task, actor="ada")  # type: ignore[no-any-return]


def approve_inside(world: World, task: Task) -> c.TaskCommand:
    asked = f"{task.id}.s.1:()ask#1"
    return world.to(c.Approve, task, actor="ada", approval_id=asked)  # type: ignore[no-any-return]


def unblock(world: World, task: Task) -> c.TaskCommand:
    return world.to(c.Unblock, task, actor="ada")  # type: ignore[no-any-return]


def _within(stage: Stage) -> Stage:
    """The same with a deadline of a hundred seconds."""

    async def short_lived(world: World) -> Task:
        return await stage(world, deadline=100 * SECOND)  # type: ignore[call-arg]

    return short_lived


def _ends_by(
    status: str, stage: Stage, rival: Rival, spared: tuple[str, str | None], loses: str, after: float = 100
) -> Case:
    return Case(
        rule="ends_by",
        name=f"ends_by while {status}",
        stage=_within(stage),
        after=after,
        rival=rival,
        acts=("timeout", "ends_by"),
        spared=spared,
        loses=loses,
    )


ENDS_BY = (
    # a task that has not started by its deadline never starts
    _ends_by("queued", queued, claim, ("timeout", "ends_by"), "task_ended"),
    _ends_by("dispatched", dispatched, claim, ("timeout", "ends_by"), "task_ended"),
    _ends_by("running", running, finish, ("succeeded", None), "stale_attempt"),
    _ends_by("blocked", cooling, unblock, ("timeout", "ends_by"), "task_ended"),
)
RULES = (
    Case(
        rule="reap",
        stage=running,
        after=300,
        rival=finish,
        acts=("queued", "timeout_reaped_by_watchdog"),
        spared=("succeeded", None),
        loses="stale_attempt",
    ),
    Case(
        rule="reap",
        name="reap, and a sign of life",
        stage=running,
        after=300,
        rival=progress,
        acts=("queued", "timeout_reaped_by_watchdog"),
        spared=("running", None),
        loses="stale_attempt",
    ),
    Case(
        rule="dispatch_timeout",
        stage=dispatched,
        after=30,
        rival=claim,
        acts=("queued", "dispatch_timeout"),
        spared=("running", None),
        loses="too_early",
    ),
    Case(
        rule="approval_expire",
        stage=unapproved,
        after=60,
        rival=approve,
        acts=("timeout", "approval_expired"),
        spared=("timeout", "approval_expired"),  # the deadline ends it in either order
        loses="task_ended",
    ),
    Case(
        rule="inject_timeout",
        stage=suspended,
        after=60,
        rival=answer,
        acts=("queued", None),
        spared=("queued", None),
    ),
    Case(
        rule="recover",
        stage=cooling,
        after=60,
        rival=unblock,
        acts=("queued", None),
        spared=("queued", None),
        loses="wrong_status",
    ),
    Case(
        rule="remind",
        stage=held,
        after=DAY,
        rival=unblock,
        acts=("queued", None),
        spared=("queued", None),
    ),
    Case(
        rule="approval_remind",
        stage=asking,
        after=DAY,
        rival=approve_inside,
        acts=("queued", None),
        spared=("queued", None),
    ),
    Case(
        rule="ring_again",
        stage=dispatched,
        after=10,
        rival=claim,
        acts=("running", None),
        spared=("running", None),
    ),
)
CASES = (*ENDS_BY, *RULES)


async def fired(world: World, task: Task) -> tuple[Task, list[Event]]:
    """The task after its clock fired, and the events of that commit."""
    command = world.to(c.ClockFired, task, actor="pmo-1")
    await world.do(command)
    events = await world.store.events_of_task("default", task.id)
    return await world.task(task), [e for e in events if e.command_id == command.command_id]
