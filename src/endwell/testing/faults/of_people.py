"""Faults of people and programs outside: they act at bad moments, twice, at once, or much too late."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from endwell.client import Client
from endwell.errors import EndwellError, IdempotencyConflict
from endwell.model import commands as c
from endwell.model import content
from endwell.model import status as s
from endwell.model.task import Task, waits_of
from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.cluster import ClusterMember
from endwell.testing.faults.registry import fault
from endwell.testing.simulation import Simulation
from endwell.testing.workload import TaskOrder

Act = Callable[[Client], Awaitable[object]]
ActsOnTask = Callable[[Task], Sequence[Act]]


def _act_on_task(
    sim: Simulation, dice: Dice, name: str, statuses: Sequence[str], acts_on: ActsOnTask
) -> None:
    """Do all acts at once, on the first task that has one of these statuses and any acts."""

    def find_tasks() -> list[Task]:
        tasks = sim.view.tasks.values() if sim.desk is not None else ()
        return [task for task in tasks if task.status in statuses and acts_on(task)]

    def act_on_task(task: Task) -> None:
        sim.count_fault(name, "people", task.id)
        for act in acts_on(task):
            sim.let_person_act(name, act)

    sim.act_when_found(dice, find_tasks, act_on_task, every=5)


def _cancel(task: Task) -> Act:
    return lambda client: client.actions.cancel(task.id)


def _replay(task: Task) -> Act:
    return lambda client: client.actions.replay(task.id)


def _if_dead_letter(*makers: Callable[[Task], Act]) -> ActsOnTask:
    return lambda task: [make(task) for make in makers] if task.dead_letter == "open" else []


@fault(weight=5)
def cancelled_while_it_runs(sim: Simulation, dice: Dice) -> None:
    """A person cancels a task during its turn, or while it waits."""
    statuses = dice.choice(((s.RUNNING,), (s.SUSPENDED,), (s.QUEUED, s.DISPATCHED)))
    _act_on_task(sim, dice, "cancelled_while_it_runs", statuses, lambda task: [_cancel(task)])


@fault(weight=2)
def cancelled_by_two(sim: Simulation, dice: Dice) -> None:
    """Two people cancel one task at once."""
    _act_on_task(sim, dice, "cancelled_by_two", s.LIVE, lambda task: [_cancel(task)] * 2)


def _open_approvals(task: Task) -> list[str]:
    if task.status == s.WAITING_APPROVAL:
        return [task.id]
    return [wait.tool_call_id for wait in waits_of(task) if wait.kind == "approval" and wait.is_open]


@fault(weight=3)
def approved_by_two(sim: Simulation, dice: Dice) -> None:
    """Two people press the same button."""

    def acts_on(task: Task) -> list[Act]:
        return [lambda client, a=a: client.approve(a, by="ada") for a in _open_approvals(task)[:1] * 2]  # type: ignore[misc]

    _act_on_task(sim, dice, "approved_by_two", (s.WAITING_APPROVAL, s.SUSPENDED), acts_on)


@fault(weight=3)
def approved_and_rejected(sim: Simulation, dice: Dice) -> None:
    """One person agrees while another declines."""

    def acts_on(task: Task) -> list[Act]:
        both: list[Act] = [
            lambda client: client.approve(_open_approvals(task)[0], by="ada"),
            lambda client: client.reject(_open_approvals(task)[0], by="bob"),
        ]
        return both if _open_approvals(task) else []

    _act_on_task(sim, dice, "approved_and_rejected", (s.WAITING_APPROVAL, s.SUSPENDED), acts_on)


def _act_on_id(
    sim: Simulation, dice: Dice, name: str, sql: str, act_on: Callable[[Client, str], Awaitable[object]]
) -> None:
    """Act on one of the ids that this question finds, as soon as it finds any."""

    def act_on_row(row: tuple[str]) -> None:
        sim.count_fault(name, "people", row[0])
        sim.let_person_act(name, lambda client: act_on(client, row[0]))

    sim.act_when_found(dice, lambda: sim.view.query_rows(sql), act_on_row, every=10, within=2000)


@fault(weight=3)
def approved_too_late(sim: Simulation, dice: Dice) -> None:
    """A person agrees to an approval that was decided, or is over, long ago."""
    decided = "SELECT id FROM approvals WHERE decision IS NOT NULL"
    _act_on_id(sim, dice, "approved_too_late", decided, lambda client, name: client.approve(name, by="late"))


@fault(weight=3)
def answered_too_late(sim: Simulation, dice: Dice) -> None:
    """An answer comes to a tool call that was settled long ago."""
    settled = "SELECT tool_call_id FROM turn_waiting_tools WHERE wait_status <> 'waiting'"
    _act_on_id(sim, dice, "answered_too_late", settled, lambda client, name: client.answer(name, "late"))


@fault(weight=2)
def signalled_twice(sim: Simulation, dice: Dice) -> None:
    """A signal is sent twice, to a task that may not wait for it."""

    def acts_on(task: Task) -> list[Act]:
        return [lambda client: client.signal(task.id, "go", "go")] * 2

    _act_on_task(sim, dice, "signalled_twice", (s.SUSPENDED, s.RUNNING, s.QUEUED), acts_on)


@fault(weight=2)
def hurried(sim: Simulation, dice: Dice) -> None:
    """A person asks for a waiting task to start now, twice."""

    def acts_on(task: Task) -> list[Act]:
        return [lambda client: client.actions.retry(task.id)] * 2

    _act_on_task(sim, dice, "hurried", (s.QUEUED,), acts_on)


@fault(weight=3)
def replayed_by_two(sim: Simulation, dice: Dice) -> None:
    """Two people replay one dead letter at once."""
    acts_on = _if_dead_letter(_replay, _replay)
    _act_on_task(sim, dice, "replayed_by_two", (s.FAILED, s.TIMEOUT), acts_on)


@fault(weight=3)
def replayed_otherwise(sim: Simulation, dice: Dice) -> None:
    """A person replays a dead letter with another payload than was submitted or approved."""

    async def replay_changed(client: Client, task: Task) -> None:
        card = await client.store.card("default", task.payload_card)
        job = content.decode_stored(card.content)
        await client.actions.replay(task.id, content.encode({**job, "n": job["n"] + 1000}))

    acts_on = _if_dead_letter(lambda task: lambda client: replay_changed(client, task))
    _act_on_task(sim, dice, "replayed_otherwise", (s.FAILED, s.TIMEOUT), acts_on)


@fault(weight=2)
def replayed_and_abandoned(sim: Simulation, dice: Dice) -> None:
    """One person replays a dead letter while another closes it."""
    acts_on = _if_dead_letter(_replay, lambda task: lambda client: client.actions.abandon(task.id, "enough"))
    _act_on_task(sim, dice, "replayed_and_abandoned", (s.FAILED, s.TIMEOUT), acts_on)


def _act_on_order(
    sim: Simulation, dice: Dice, name: str, act_on: Callable[[TaskOrder], Sequence[Act]]
) -> None:
    """Act on one of the orders that were accepted, as soon as there is one."""

    def find_accepted() -> list[TaskOrder]:
        return [order for order in sim.orders if order.options["key"] in sim.view.accepted]

    def act_on_order(order: TaskOrder) -> None:
        sim.count_fault(name, "people", order.options["key"])
        for act in act_on(order):
            sim.let_person_act(name, act)

    sim.act_when_found(dice, find_accepted, act_on_order)


@fault(weight=3)
def submitted_twice(sim: Simulation, dice: Dice) -> None:
    """The same order comes again, twice at once."""

    def act_on(order: TaskOrder) -> list[Act]:
        return [lambda client: sim.submit(client, order)] * 2

    _act_on_order(sim, dice, "submitted_twice", act_on)


@fault(weight=2)
def submitted_otherwise(sim: Simulation, dice: Dice) -> None:
    """Another order comes under a key that is taken; it must be refused."""

    async def submit_other(client: Client, order: TaskOrder) -> None:
        key = order.options["key"]
        try:
            await client.submit(order.agent, {"n": -1}, key=key)
        except IdempotencyConflict:
            return
        except EndwellError as error:
            sim.note_refusal("submitted_otherwise", error)
            return
        sim.report_violation("submitted_otherwise", f"{key} was accepted with another payload")

    _act_on_order(
        sim, dice, "submitted_otherwise", lambda order: [lambda client: submit_other(client, order)]
    )


@fault(weight=4, always=2)
def stale_write(sim: Simulation, dice: Dice) -> None:
    """A command of an attempt is sent again just when another attempt has begun to hold the task."""

    def stale_commands() -> list[c.AttemptCommand]:
        return [one for one in sim.overheard if _is_stale(sim, one) and _is_running(sim, one)]

    def send_after_claim(member: ClusterMember, commands: Sequence[c.Command]) -> bool | None:
        if not any(isinstance(one, c.ClaimNext) for one in commands) or not stale_commands():
            return None
        _send_again(sim, "stale_write", dice.choice(stale_commands()))
        return True

    sim.wait_at("committed", send_after_claim, within=2000)


@fault(weight=3)
def stale_write_long_after(sim: Simulation, dice: Dice) -> None:
    """A command of an attempt is sent again when the task has ended, or no attempt holds it."""

    def find_stale() -> list[c.AttemptCommand]:
        return [command for command in sim.overheard if _is_stale(sim, command)]

    def send(command: c.AttemptCommand) -> None:
        _send_again(sim, "stale_write_long_after", command)

    sim.act_when_found(dice, find_stale, send, every=7, within=2000)


def _send_again(sim: Simulation, name: str, command: c.AttemptCommand) -> None:
    sim.count_fault(name, "network", f"{type(command).__name__} {command.task_id}")
    sim.let_person_act(name, lambda client: _write_again(sim, client, command))


def _is_running(sim: Simulation, command: c.AttemptCommand) -> bool:
    return sim.view.tasks[command.task_id].status == s.RUNNING


def _is_stale(sim: Simulation, command: c.AttemptCommand) -> bool:
    task = sim.view.tasks.get(command.task_id)
    return task is not None and task.attempt_id != command.attempt_id


async def _write_again(sim: Simulation, client: Client, command: c.AttemptCommand) -> None:
    again = replace(command, command_id=sim.new_id())
    (reply,) = await client.store.commit((again,))
    if reply.refusal is None and not isinstance(command, c.Reclaim) and _took_place(sim, again):
        sim.report_violation("stale_write", f"{type(command).__name__} of {command.attempt_id} was accepted")


def _took_place(sim: Simulation, command: c.AttemptCommand) -> bool:
    """Whether the log has it. While nothing can be written, a process may answer from its cache."""
    return bool(sim.view.query_rows("SELECT 1 FROM events WHERE command_id = ?", (command.command_id,)))


@fault(weight=4)
def command_sent_twice(sim: Simulation, dice: Dice) -> None:
    """A command that was carried out is sent again, as it was."""

    def send(command: c.AttemptCommand) -> None:
        sim.count_fault("command_sent_twice", "network", f"{type(command).__name__} {command.task_id}")
        sim.let_person_act("command_sent_twice", lambda client: client.store.commit((command,)))

    sim.act_when_found(dice, lambda: sim.overheard, send, every=5)


@fault(weight=2)
def heartbeat_from_the_grave(sim: Simulation, dice: Dice) -> None:
    """A heartbeat arrives when its session was closed; it must not open it again."""

    async def send_beat(client: Client, command: c.Heartbeat) -> None:
        (reply,) = await client.store.commit((replace(command, command_id=sim.new_id()),))
        if reply.refusal is None:
            sim.report_violation("heartbeat_from_the_grave", f"session {command.session_id} was revived")

    def find_late() -> list[c.Heartbeat]:
        rows = sim.view.query_rows("SELECT id FROM sessions WHERE ended_at IS NOT NULL")
        ended = {row[0] for row in rows}
        return [beat for session, beat in sorted(sim.last_beats.items()) if session in ended]

    def send(command: c.Heartbeat) -> None:
        sim.count_fault("heartbeat_from_the_grave", "network", command.session_id)
        sim.let_person_act("heartbeat_from_the_grave", lambda client: send_beat(client, command))

    sim.act_when_found(dice, find_late, send, every=15, within=2000)
