"""Faults of the store: the database is busy, full, unreadable, or does not answer."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from endwell.model import commands as c
from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.cluster import ClusterMember
from endwell.testing.faults.of_processes import busy_workers, has_substance
from endwell.testing.faults.registry import fault
from endwell.testing.occasions import ArmedMoment
from endwell.testing.simulation import Simulation


def _break_transactions(
    sim: Simulation, name: str, moment: ArmedMoment, error: type[apsw.Error], times: int
) -> None:
    """Break the next transactions of the process that first has one."""
    victim: list[ClusterMember] = []

    def is_meant(member: ClusterMember, commands: Sequence[c.Command]) -> bool:
        return member is victim[0] if victim else has_substance(commands)

    def break_it(member: ClusterMember, commands: Sequence[c.Command]) -> None:
        if not victim:
            victim.append(member)
            sim.happened(name, member.name, " ".join(sorted({type(one).__name__ for one in commands})))
        raise error(name)

    sim.arm(moment, is_meant, break_it, times=times)


@fault(weight=4)
def file_busy_for_a_moment(sim: Simulation, dice: Dice) -> None:
    """Another process holds the file when a transaction begins; a moment later it is free."""
    _break_transactions(sim, "file_busy_for_a_moment", "begin", apsw.BusyError, 1)


@fault(weight=4)
def file_busy_too_long(sim: Simulation, dice: Dice) -> None:
    """Another process holds the file for longer than a transaction waits."""
    _break_transactions(sim, "file_busy_too_long", "begin", apsw.BusyError, dice.randint(2, 12))


@fault(weight=4)
def commit_fails(sim: Simulation, dice: Dice) -> None:
    """The disk refuses a commit; nothing of it is kept."""
    _break_transactions(sim, "commit_fails", "commit", apsw.IOError, dice.choice((1, 1, 3)))


@fault(weight=6)
def answer_of_a_commit_lost(sim: Simulation, dice: Dice) -> None:
    """A commit takes place, and its process receives an error."""
    _break_transactions(sim, "answer_of_a_commit_lost", "committed", apsw.IOError, 1)


@fault(weight=3)
def disk_full(sim: Simulation, dice: Dice) -> None:
    """For a while no process can write."""
    seconds = dice.choice((1, 15, 120, 400))
    until: list[int] = []

    def break_it(member: ClusterMember, commands: Sequence[c.Command]) -> None:
        if not until:
            until.append(sim.elapsed_us + seconds * 1_000_000)
            sim.happened("disk_full", "machine", f"{seconds} s")
        raise apsw.FullError("disk_full")

    def is_meant(member: ClusterMember, commands: Sequence[c.Command]) -> bool:
        return has_substance(commands) if not until else sim.elapsed_us < until[0]

    sim.arm("commit", is_meant, break_it, times=100_000, within=300 + seconds)


@fault(weight=3)
def reading_fails(sim: Simulation, dice: Dice) -> None:
    """Reads of the store fail for a moment."""
    victim: list[ClusterMember] = []

    def is_meant(member: ClusterMember, commands: Sequence[c.Command]) -> bool:
        return not victim or member is victim[0]

    def break_it(member: ClusterMember, commands: Sequence[c.Command]) -> None:
        if not victim:
            victim.append(member)
            sim.happened("reading_fails", member.name)
        raise apsw.IOError("reading_fails")

    sim.arm("read", is_meant, break_it, times=dice.choice((1, 2, 6)))


@fault(weight=3)
def store_away_past_the_lease(sim: Simulation, dice: Dice) -> None:
    """For longer than the lease no process, or only one, can reach the store; no process dies."""
    seconds = sim.lease_seconds * (1.2 + 2 * dice.random())
    spares_one, begun = dice.happens(0.3), list[int]()
    spared: list[ClusterMember] = []

    def is_meant(member: ClusterMember, commands: Sequence[c.Command]) -> bool:
        if begun:
            return sim.elapsed_us < begun[0] + seconds * 1_000_000 and member not in spared
        return bool(commands) and has_substance(commands) and bool(busy_workers(sim))

    def break_it(member: ClusterMember, commands: Sequence[c.Command]) -> None:
        if not begun:
            begun.append(sim.elapsed_us)
            others = [one for one in sim.cluster.members.values() if one is not member]
            spared.extend(dice.choices(others, k=1) if spares_one and others else ())
            sim.happened("store_away_past_the_lease", "machine", f"{seconds:.0f} s")
        raise apsw.IOError("store_away_past_the_lease")

    sim.arm("begin", is_meant, break_it, times=100_000, within=300 + int(seconds))
    sim.arm("read", lambda member, commands: bool(begun) and is_meant(member, ()), break_it, times=100_000)
