"""Faults of processes: they die, freeze, stall, leave, and run twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from endwell.model import commands as c
from endwell.policy.guard import is_suspect
from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.cluster import ClusterMember
from endwell.testing.faults.registry import fault
from endwell.testing.occasions import Act, TransactionPoint
from endwell.testing.simulation import Simulation
from endwell.testing.store_tap import KilledError

IDLE = (c.Heartbeat, c.RequeueResumes)
ActOnMember = Callable[[ClusterMember], None]


def has_substance(commands: Sequence[c.Command]) -> bool:
    """Whether a transaction does more than renew leases."""
    return any(not isinstance(command, IDLE) for command in commands)


def busy_workers(sim: Simulation) -> list[ClusterMember]:
    """Workers that are up and hold work."""
    return [member for member in sim.members_of("worker") if member.is_up and member.held_count]


def on_busy_worker(sim: Simulation, dice: Dice, name: str, about: str, act: ActOnMember) -> None:
    """Act on one of the workers that hold work, as soon as there is one."""

    def act_on_victim(victim: ClusterMember) -> None:
        sim.count_fault(name, victim.name, f"{about}held {victim.held_count}")
        act(victim)

    sim.act_when_found(dice, lambda: busy_workers(sim), act_on_victim)


@fault(weight=4, always=1)
def worker_killed_at_an_await(sim: Simulation, dice: Dice) -> None:
    """A worker that holds work is killed between two of its steps."""

    def kill(victim: ClusterMember) -> None:
        sim.kill(victim, down_seconds=dice.choice((2, 20, 120)))

    on_busy_worker(sim, dice, "worker_killed_at_an_await", "", kill)


def names_of(commands: Sequence[c.Command]) -> str:
    return " ".join(sorted({type(one).__name__ for one in commands}))


def _kill_at(sim: Simulation, dice: Dice, name: str, point: TransactionPoint) -> None:
    wanted = dice.choice((c.TaskCommand, c.AttemptCommand, c.Finish, c.ClaimNext, c.Submit, c.Command))

    def kill(member: ClusterMember, commands: Sequence[c.Command]) -> None:
        if has_substance(commands) and any(isinstance(command, wanted) for command in commands):
            sim.count_fault(name, member.name, names_of(commands))
            sim.kill(member, down_seconds=dice.choice((1, 10, 60)))
            raise KilledError

    sim.wait_at(point, kill)


@fault(weight=4, always=1)
def killed_before_a_commit(sim: Simulation, dice: Dice) -> None:
    """A process is killed with a transaction written and not yet committed."""
    _kill_at(sim, dice, "killed_before_a_commit", "commit")


@fault(weight=4, always=1)
def killed_after_a_commit(sim: Simulation, dice: Dice) -> None:
    """A process is killed right after its commit, before any answer."""
    _kill_at(sim, dice, "killed_after_a_commit", "committed")


def _kill_in_effect(sim: Simulation, dice: Dice, name: str) -> Act:
    def kill(member: ClusterMember, key: str) -> None:
        sim.count_fault(name, member.name, key)
        sim.kill(member, down_seconds=dice.choice((2, 40)))
        raise KilledError

    return kill


@fault(weight=6)
def killed_before_the_world_changes(sim: Simulation, dice: Dice) -> None:
    """A worker is killed inside an effect, just before the outside world changes."""
    kill = _kill_in_effect(sim, dice, "killed_before_the_world_changes")
    sim.wait_at("before_change", kill, within=math.inf)


@fault(weight=3, always=1)
def killed_after_the_world_changed(sim: Simulation, dice: Dice) -> None:
    """A worker is killed inside an effect, after the outside world has changed and before its record."""
    kill = _kill_in_effect(sim, dice, "killed_after_the_world_changed")
    sim.wait_at("after_change", kill, within=math.inf)


@fault(weight=1)
def power_cut(sim: Simulation, dice: Dice) -> None:
    """Every process dies at once."""

    def cut_if_busy() -> bool:
        found = busy_workers(sim)
        if found:
            sim.count_fault("power_cut", "machine", f"{len(found)} held work")
            for member in list(sim.cluster.members.values()):
                sim.kill(member, down_seconds=dice.choice((5, 60)))
        return bool(found)

    sim.retry_until(cut_if_busy)


@fault(weight=2)
def tasks_made_suspect(sim: Simulation, dice: Dice) -> None:
    """Some tasks kill every worker that claims one of them, until one more crash would end them."""
    suspects: set[str] = set()
    limit = sim.settings.pmo.crash_limit

    def kill_holders() -> bool:
        for victim in busy_workers(sim):
            suspects.update(victim.held_tasks[: 3 - len(suspects)])
            deadly = [one for one in victim.held_tasks if one in suspects]
            if any(not is_suspect(sim.view.tasks[one].crash_count, limit) for one in deadly):
                sim.count_fault("tasks_made_suspect", victim.name, f"held {victim.held_count}")
                sim.kill(victim, down_seconds=2)
        return False

    sim.retry_until(kill_holders, within=1800)


def _freeze_busy_worker(sim: Simulation, dice: Dice, name: str, seconds: float) -> None:
    on_busy_worker(sim, dice, name, f"{seconds:.0f} s, ", lambda victim: sim.freeze(victim, seconds))


@fault(weight=3, always=1)
def worker_frozen_past_its_lease(sim: Simulation, dice: Dice) -> None:
    """A worker freezes for longer than its lease, then runs on as if nothing had happened."""
    _freeze_busy_worker(
        sim, dice, "worker_frozen_past_its_lease", sim.lease_seconds * (1.2 + 3 * dice.random())
    )


@fault(weight=3)
def worker_frozen_for_a_moment(sim: Simulation, dice: Dice) -> None:
    """A worker freezes for less than its lease."""
    _freeze_busy_worker(sim, dice, "worker_frozen_for_a_moment", sim.lease_seconds * 0.4 * dice.random())


@fault(weight=2, always=1)
def worker_frozen_inside_an_effect(sim: Simulation, dice: Dice) -> None:
    """A worker freezes after it was allowed an effect, and carries it out when it runs again."""
    seconds = sim.lease_seconds * (1.2 + 2 * dice.random())

    def find_inside() -> list[ClusterMember]:
        return [member for member in busy_workers(sim) if sim.is_in_effect(member)]

    def freeze(victim: ClusterMember) -> None:
        sim.count_fault("worker_frozen_inside_an_effect", victim.name, f"{seconds:.0f} s")
        sim.freeze(victim, seconds)

    sim.act_when_found(dice, find_inside, freeze, every=0.3, within=900)


@fault(weight=4)
def loop_blocked(sim: Simulation, dice: Dice) -> None:
    """A worker's event loop is blocked for longer than its lease, while its heartbeat runs."""
    seconds = sim.lease_seconds * (0.5 + 2 * dice.random())
    about = f"{seconds:.0f} s, "
    on_busy_worker(sim, dice, "loop_blocked", about, lambda victim: victim.loop.stall_for(seconds))


@fault(weight=4)
def heartbeat_blocked(sim: Simulation, dice: Dice) -> None:
    """A worker's heartbeat is blocked for longer than its lease, while its event loop runs."""
    seconds = sim.lease_seconds * (1.1 + dice.random())

    def block(victim: ClusterMember) -> None:
        for loop in victim.process.loops:
            if loop.name.endswith("heartbeat"):
                loop.stall_for(seconds)

    on_busy_worker(sim, dice, "heartbeat_blocked", f"{seconds:.0f} s, ", block)


@fault(weight=3)
def worker_told_to_leave(sim: Simulation, dice: Dice) -> None:
    """A worker that holds work is asked to stop; it drains and closes its session, and another starts."""
    on_busy_worker(sim, dice, "worker_told_to_leave", "", lambda victim: victim.stop())


@fault(weight=3)
def supervisor_killed(sim: Simulation, dice: Dice) -> None:
    """A supervisor is killed inside a commit that moves tasks."""

    def kill(member: ClusterMember, commands: Sequence[c.Command]) -> None:
        if member.kind == "pmo" and any(isinstance(one, c.TaskCommand) for one in commands):
            sim.count_fault("supervisor_killed", member.name, type(commands[0]).__name__)
            sim.kill(member, down_seconds=dice.choice((5, 120, 400)))
            raise KilledError

    points: tuple[TransactionPoint, ...] = ("commit", "committed")
    sim.wait_at(dice.choice(points), kill)


@fault(weight=3)
def supervisor_frozen(sim: Simulation, dice: Dice) -> None:
    """A supervisor freezes for many ticks, then continues its tick."""
    seconds = sim.tick_seconds * (2 + 10 * dice.random())

    def freeze(member: ClusterMember, commands: Sequence[c.Command]) -> bool | None:
        if member.kind != "pmo" or not has_substance(commands):
            return None
        sim.count_fault("supervisor_frozen", member.name, f"{seconds:.0f} s")
        sim.freeze(member, seconds)
        return True

    sim.wait_at("committed", freeze)


@fault(weight=3)
def second_supervisor(sim: Simulation, dice: Dice) -> None:
    """Another supervisor is started beside the first, for a while."""
    name = f"pmo{2 + dice.randrange(2)}"
    if name not in sim.kept:
        sim.count_fault("second_supervisor", name)
        sim.run_member(name, "pmo", seconds=600 + 1200 * dice.random())
