"""Processes die, freeze, stall, and come in twos."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from endwell.model import commands as c
from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.cluster import ClusterMember
from endwell.testing.faults.registry import fault
from endwell.testing.occasions import ArmedMoment
from endwell.testing.simulation import Simulation
from endwell.testing.store_tap import KilledError

IDLE = (c.Heartbeat, c.RequeueResumes)


def has_substance(commands: Sequence[c.Command]) -> bool:
    """Whether a transaction is about more than being alive."""
    return any(not isinstance(command, IDLE) for command in commands)


def busy_workers(sim: Simulation) -> list[ClusterMember]:
    """Workers that are up and hold work."""
    return [member for member in sim.members("worker") if member.is_up and member.held]


def on_busy_worker(sim: Simulation, dice: Dice, act: Callable[[ClusterMember], None]) -> None:
    """Do it to one of the workers that hold work, as soon as there is one."""

    def when() -> bool:
        found = busy_workers(sim)
        if found:
            act(dice.choice(found))
        return bool(found)

    sim.once(when)


@fault(weight=4, always=1)
def worker_killed_at_an_await(sim: Simulation, dice: Dice) -> None:
    """A worker that holds work is killed between two of its steps."""

    def kill(victim: ClusterMember) -> None:
        sim.happened("worker_killed_at_an_await", victim.name, f"held {victim.held}")
        sim.kill(victim, down_seconds=dice.choice((2, 20, 120)))

    on_busy_worker(sim, dice, kill)


def _kill_at(sim: Simulation, dice: Dice, name: str, moment: ArmedMoment) -> None:
    wanted = dice.choice((c.TaskCommand, c.AttemptCommand, c.Finish, c.ClaimNext, c.Submit, c.Command))

    def matches(member: ClusterMember, commands: Sequence[c.Command]) -> bool:
        return has_substance(commands) and any(isinstance(command, wanted) for command in commands)

    def act(member: ClusterMember, commands: Sequence[c.Command]) -> None:
        sim.happened(name, member.name, " ".join(sorted({type(one).__name__ for one in commands})))
        sim.kill(member, down_seconds=dice.choice((1, 10, 60)))
        raise KilledError

    sim.arm(moment, matches, act)


@fault(weight=4, always=1)
def killed_before_a_commit(sim: Simulation, dice: Dice) -> None:
    """A process is killed with a transaction written and not yet committed."""
    _kill_at(sim, dice, "killed_before_a_commit", "commit")


@fault(weight=4, always=1)
def killed_after_a_commit(sim: Simulation, dice: Dice) -> None:
    """A process is killed right after its commit, before anybody hears of it."""
    _kill_at(sim, dice, "killed_after_a_commit", "committed")


@fault(weight=6)
def killed_before_the_world_changes(sim: Simulation, dice: Dice) -> None:
    """A worker is killed inside an effect, just before the world outside would change."""

    def act(member: ClusterMember, key: str) -> None:
        sim.happened("killed_before_the_world_changes", member.name, key)
        sim.kill(member, down_seconds=dice.choice((2, 40)))
        raise KilledError

    sim.before_change.append(act)


@fault(weight=3, always=1)
def killed_after_the_world_changed(sim: Simulation, dice: Dice) -> None:
    """A worker is killed inside an effect, when the world outside has changed and nothing says so yet."""

    def act(member: ClusterMember, key: str) -> None:
        sim.happened("killed_after_the_world_changed", member.name, key)
        sim.kill(member, down_seconds=dice.choice((2, 40)))
        raise KilledError

    sim.after_change.append(act)


@fault(weight=1)
def power_cut(sim: Simulation, dice: Dice) -> None:
    """Every process dies at once."""

    def when() -> bool:
        found = busy_workers(sim)
        if found:
            sim.happened("power_cut", "machine", f"{len(found)} held work")
            for member in list(sim.cluster.members.values()):
                sim.kill(member, down_seconds=dice.choice((5, 60)))
        return bool(found)

    sim.once(when)


@fault(weight=3, always=1)
def worker_frozen_past_its_lease(sim: Simulation, dice: Dice) -> None:
    """A worker stands still for longer than its lease, then goes on as if nothing had happened."""
    seconds = sim.lease_seconds * (1.2 + 3 * dice.random())

    def freeze(victim: ClusterMember) -> None:
        sim.happened("worker_frozen_past_its_lease", victim.name, f"{seconds:.0f} s, held {victim.held}")
        sim.freeze(victim, seconds)

    on_busy_worker(sim, dice, freeze)


@fault(weight=3)
def worker_frozen_for_a_moment(sim: Simulation, dice: Dice) -> None:
    """A worker stands still for less than its lease."""
    seconds = sim.lease_seconds * 0.4 * dice.random()

    def freeze(victim: ClusterMember) -> None:
        sim.happened("worker_frozen_for_a_moment", victim.name, f"{seconds:.0f} s, held {victim.held}")
        sim.freeze(victim, seconds)

    on_busy_worker(sim, dice, freeze)


@fault(weight=2, always=1)
def worker_frozen_inside_an_effect(sim: Simulation, dice: Dice) -> None:
    """A worker freezes after it was allowed an effect, and carries it out when it wakes."""
    seconds = sim.lease_seconds * (1.2 + 2 * dice.random())

    def when() -> bool:
        found = [member for member in busy_workers(sim) if sim.is_in_effect(member)]
        if found:
            victim = dice.choice(found)
            sim.happened("worker_frozen_inside_an_effect", victim.name, f"{seconds:.0f} s")
            sim.freeze(victim, seconds)
        return bool(found)

    sim.once(when, every=0.3, within=900)


@fault(weight=4)
def loop_blocked(sim: Simulation, dice: Dice) -> None:
    """Something blocks a worker's event loop for longer than its lease; its heartbeat goes on."""
    seconds = sim.lease_seconds * (0.5 + 2 * dice.random())

    def block(victim: ClusterMember) -> None:
        sim.happened("loop_blocked", victim.name, f"{seconds:.0f} s, held {victim.held}")
        victim.loop.stall_for(seconds)

    on_busy_worker(sim, dice, block)


@fault(weight=4)
def heartbeat_blocked(sim: Simulation, dice: Dice) -> None:
    """A worker's heartbeat stands still for longer than its lease; its event loop goes on."""
    seconds = sim.lease_seconds * (1.1 + dice.random())

    def block(victim: ClusterMember) -> None:
        sim.happened("heartbeat_blocked", victim.name, f"{seconds:.0f} s, held {victim.held}")
        for loop in victim.process.loops:
            if loop.name.endswith("heartbeat"):
                loop.stall_for(seconds)

    on_busy_worker(sim, dice, block)


@fault(weight=3)
def worker_told_to_leave(sim: Simulation, dice: Dice) -> None:
    """A worker that holds work is told to stop; it drains, says goodbye, and another comes."""

    def stop(victim: ClusterMember) -> None:
        sim.happened("worker_told_to_leave", victim.name, f"held {victim.held}")
        victim.stop()

    on_busy_worker(sim, dice, stop)


@fault(weight=3)
def supervisor_killed(sim: Simulation, dice: Dice) -> None:
    """A supervisor is killed inside a commit that moves tasks."""

    def matches(member: ClusterMember, commands: Sequence[c.Command]) -> bool:
        return member.kind == "pmo" and any(isinstance(one, c.TaskCommand) for one in commands)

    def act(member: ClusterMember, commands: Sequence[c.Command]) -> None:
        sim.happened("supervisor_killed", member.name, type(commands[0]).__name__)
        sim.kill(member, down_seconds=dice.choice((5, 120, 400)))
        raise KilledError

    moments: tuple[ArmedMoment, ...] = ("commit", "committed")
    sim.arm(dice.choice(moments), matches, act)


@fault(weight=3)
def supervisor_frozen(sim: Simulation, dice: Dice) -> None:
    """A supervisor stands still for many ticks, then goes on with what it had in mind."""
    seconds = sim.tick_seconds * (2 + 10 * dice.random())

    def matches(member: ClusterMember, commands: Sequence[c.Command]) -> bool:
        return member.kind == "pmo" and has_substance(commands)

    def act(member: ClusterMember, commands: Sequence[c.Command]) -> None:
        sim.happened("supervisor_frozen", member.name, f"{seconds:.0f} s")
        sim.freeze(member, seconds)

    sim.arm("committed", matches, act)


@fault(weight=3)
def second_supervisor(sim: Simulation, dice: Dice) -> None:
    """Another supervisor is started beside the first, for a while."""
    name = f"pmo{2 + dice.randrange(2)}"
    if name not in sim.kept:
        sim.happened("second_supervisor", name)
        sim.keep(name, "pmo", seconds=600 + 1200 * dice.random())
