"""People and programs outside act at bad moments, twice, at once, or much too late."""

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

Act = Callable[[Client], Awaitable[object]]


def _on_task(
    sim: Simulation, dice: Dice, name: str, statuses: Sequence[str], acts: Callable[[Task], Sequence[Act]]
) -> None:
    """All at once, on a task that has one of these statuses, as soon as there is one."""

    def when() -> bool:
        found = [task for task in sim.view.tasks.values() if task.status in statuses and acts(task)]
        if found and sim.desk is not None:
            task = dice.choice(found)
            sim.happened(name, "people", task.id)
            for act in acts(task):
                sim.person_does(name, act)
            return True
        return False

    sim.once(when, every=5)


@fault(weight=5)
def cancelled_while_it_runs(sim: Simulation, dice: Dice) -> None:
    """Somebody cancels a task in the middle of its turn, or while it waits."""
    statuses = dice.choice(((s.RUNNING,), (s.SUSPENDED,), (s.QUEUED, s.DISPATCHED)))
    _on_task(
        sim,
        dice,
        "cancelled_while_it_runs",
        statuses,
        lambda task: [lambda client: client.actions.cancel(task.id)],
    )


@fault(weight=2)
def cancelled_by_two(sim: Simulation, dice: Dice) -> None:
    """Two people cancel one task at once."""
    _on_task(
        sim,
        dice,
        "cancelled_by_two",
        s.LIVE,
        lambda task: [lambda client: client.actions.cancel(task.id)] * 2,
    )


def _open_approvals(task: Task) -> list[str]:
    if task.status == s.WAITING_APPROVAL:
        return [task.id]
    return [wait.tool_call_id for wait in waits_of(task) if wait.kind == "approval" and wait.is_open]


@fault(weight=3)
def approved_by_two(sim: Simulation, dice: Dice) -> None:
    """Two people press the same button."""

    def acts(task: Task) -> list[Act]:
        return [lambda client, a=a: client.approve(a, by="ada") for a in _open_approvals(task)[:1] * 2]  # type: ignore[misc]

    _on_task(sim, dice, "approved_by_two", (s.WAITING_APPROVAL, s.SUSPENDED), acts)


@fault(weight=3)
def approved_and_rejected(sim: Simulation, dice: Dice) -> None:
    """One person agrees while another declines."""

    def acts(task: Task) -> list[Act]:
        found = _open_approvals(task)
        if not found:
            return []
        both: list[Act] = [
            lambda client: client.approve(found[0], by="ada"),
            lambda client: client.reject(found[0], by="bob"),
        ]
        return both

    _on_task(sim, dice, "approved_and_rejected", (s.WAITING_APPROVAL, s.SUSPENDED), acts)


@fault(weight=3)
def approved_too_late(sim: Simulation, dice: Dice) -> None:
    """Somebody agrees to what was decided, or is over, long ago."""

    def when() -> bool:
        decided = [row[0] for row in sim.view.ask("SELECT id FROM approvals WHERE decision IS NOT NULL")]
        if decided:
            chosen = dice.choice(decided)
            sim.happened("approved_too_late", "people", chosen)
            sim.person_does("approved_too_late", lambda client: client.approve(chosen, by="late"))
        return bool(decided)

    sim.once(when, every=10, within=2000)


@fault(weight=3)
def answered_too_late(sim: Simulation, dice: Dice) -> None:
    """An answer comes to a tool call that was settled long ago."""

    def when() -> bool:
        rows = sim.view.ask("SELECT tool_call_id FROM turn_waiting_tools WHERE wait_status <> 'waiting'")
        if rows:
            chosen = dice.choice(rows)[0]
            sim.happened("answered_too_late", "people", chosen)
            sim.person_does("answered_too_late", lambda client: client.answer(chosen, "late"))
        return bool(rows)

    sim.once(when, every=10, within=2000)


@fault(weight=2)
def signalled_twice(sim: Simulation, dice: Dice) -> None:
    """A signal is sent twice, to whoever waits for it or not."""

    def acts(task: Task) -> list[Act]:
        return [lambda client: client.signal(task.id, "go", "go")] * 2

    _on_task(sim, dice, "signalled_twice", (s.SUSPENDED, s.RUNNING, s.QUEUED), acts)


@fault(weight=2)
def hurried(sim: Simulation, dice: Dice) -> None:
    """Somebody asks for a waiting task to start now, twice."""
    _on_task(
        sim, dice, "hurried", (s.QUEUED,), lambda task: [lambda client: client.actions.retry(task.id)] * 2
    )


@fault(weight=3)
def replayed_by_two(sim: Simulation, dice: Dice) -> None:
    """Two people replay one dead letter at once."""

    def acts(task: Task) -> list[Act]:
        is_open = task.dead_letter == "open"
        return [lambda client: client.actions.replay(task.id)] * 2 if is_open else []

    _on_task(sim, dice, "replayed_by_two", (s.FAILED, s.TIMEOUT), acts)


@fault(weight=3)
def replayed_otherwise(sim: Simulation, dice: Dice) -> None:
    """Somebody replays a dead letter with another payload than was asked for, or agreed to."""

    async def replay(client: Client, task: Task) -> None:
        card = await client.store.card("default", task.payload_card)
        job = content.decode_stored(card.content)
        await client.actions.replay(task.id, content.encode({**job, "n": job["n"] + 1000}))

    def acts(task: Task) -> list[Act]:
        return [lambda client: replay(client, task)] if task.dead_letter == "open" else []

    _on_task(sim, dice, "replayed_otherwise", (s.FAILED, s.TIMEOUT), acts)


@fault(weight=2)
def replayed_and_abandoned(sim: Simulation, dice: Dice) -> None:
    """One person replays a dead letter while another closes it."""

    def acts(task: Task) -> list[Act]:
        if task.dead_letter != "open":
            return []
        return [
            lambda client: client.actions.replay(task.id),
            lambda client: client.actions.abandon(task.id, "enough"),
        ]

    _on_task(sim, dice, "replayed_and_abandoned", (s.FAILED, s.TIMEOUT), acts)


@fault(weight=3)
def submitted_twice(sim: Simulation, dice: Dice) -> None:
    """The same order comes again, twice at once."""

    def when() -> bool:
        done = [order for order in sim.orders if order.options["key"] in sim.view.accepted]
        if done:
            order = dice.choice(done)
            sim.happened("submitted_twice", "people", order.options["key"])
            for _ in range(2):
                sim.person_does("submitted_twice", lambda client: sim.submit(client, order))
        return bool(done)

    sim.once(when)


@fault(weight=2)
def submitted_otherwise(sim: Simulation, dice: Dice) -> None:
    """Another order comes under a key that is taken; it must be refused."""

    async def submit(client: Client, key: str, agent: str) -> None:
        try:
            await client.submit(agent, {"n": -1}, key=key)
        except IdempotencyConflict:
            return
        except EndwellError as error:
            sim.note_refusal("submitted_otherwise", error)
            return
        sim.complain("submitted_otherwise", f"{key} was accepted with another payload")

    def when() -> bool:
        done = [order for order in sim.orders if order.options["key"] in sim.view.accepted]
        if done:
            order = dice.choice(done)
            key = order.options["key"]
            sim.happened("submitted_otherwise", "people", key)
            sim.person_does("submitted_otherwise", lambda client: submit(client, key, order.agent))
        return bool(done)

    sim.once(when)


@fault(weight=4, always=2)
def stale_write(sim: Simulation, dice: Dice) -> None:
    """What an attempt said is said again just when another attempt has begun to hold the task."""

    def late() -> list[c.AttemptCommand]:
        return [one for one in sim.overheard if _is_stale(sim, one) and _is_running(sim, one)]

    def matches(member: ClusterMember, commands: Sequence[c.Command]) -> bool:
        return any(isinstance(one, c.ClaimNext) for one in commands) and bool(late())

    def act(member: ClusterMember, commands: Sequence[c.Command]) -> None:
        _say_again(sim, "stale_write", dice.choice(late()))

    sim.arm("committed", matches, act, within=2000)


@fault(weight=3)
def stale_write_long_after(sim: Simulation, dice: Dice) -> None:
    """What an attempt said is said again when the task has ended, or nobody holds it."""

    def when() -> bool:
        stale = [command for command in sim.overheard if _is_stale(sim, command)]
        if stale:
            _say_again(sim, "stale_write_long_after", dice.choice(stale))
        return bool(stale)

    sim.once(when, every=7, within=2000)


def _say_again(sim: Simulation, name: str, command: c.AttemptCommand) -> None:
    sim.happened(name, "network", f"{type(command).__name__} {command.task_id}")
    sim.person_does(name, lambda client: _write_again(sim, client, command))


def _is_running(sim: Simulation, command: c.AttemptCommand) -> bool:
    return sim.view.tasks[command.task_id].status == s.RUNNING


def _is_stale(sim: Simulation, command: c.AttemptCommand) -> bool:
    task = sim.view.tasks.get(command.task_id)
    return task is not None and task.attempt_id != command.attempt_id


async def _write_again(sim: Simulation, client: Client, command: c.AttemptCommand) -> None:
    again = replace(command, command_id=sim.new_id())
    (reply,) = await client.store.commit((again,))
    if reply.refusal is None and _moves(command) and _took_place(sim, again):
        sim.complain("stale_write", f"{type(command).__name__} of {command.attempt_id} was accepted")


def _moves(command: c.AttemptCommand) -> bool:
    return not isinstance(command, c.Reclaim)


def _took_place(sim: Simulation, command: c.AttemptCommand) -> bool:
    """Where nothing is written, a process may be answered from what it knew before its loss."""
    return bool(sim.view.ask("SELECT 1 FROM events WHERE command_id = ?", (command.command_id,)))


@fault(weight=4)
def command_sent_twice(sim: Simulation, dice: Dice) -> None:
    """A command that was carried out is sent again, as it was."""

    def when() -> bool:
        if sim.overheard:
            command = dice.choice(sim.overheard)
            sim.happened("command_sent_twice", "network", f"{type(command).__name__} {command.task_id}")
            sim.person_does("command_sent_twice", lambda client: client.store.commit((command,)))
        return bool(sim.overheard)

    sim.once(when, every=5)


@fault(weight=2)
def heartbeat_from_the_grave(sim: Simulation, dice: Dice) -> None:
    """A heartbeat arrives when its session was buried; it must not bring it back."""

    async def beat(client: Client, command: c.Heartbeat) -> None:
        (reply,) = await client.store.commit((replace(command, command_id=sim.new_id()),))
        if reply.refusal is None:
            sim.complain("heartbeat_from_the_grave", f"session {command.session_id} was revived")

    def when() -> bool:
        ended = {row[0] for row in sim.view.ask("SELECT id FROM sessions WHERE ended_at IS NOT NULL")}
        late = [beats for session, beats in sorted(sim.last_beats.items()) if session in ended]
        if late:
            command = dice.choice(late)
            sim.happened("heartbeat_from_the_grave", "network", command.session_id)
            sim.person_does("heartbeat_from_the_grave", lambda client: beat(client, command))
        return bool(late)

    sim.once(when, every=15, within=2000)
