"""Faults of the store: the database is busy, full, unreadable, or does not answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import apsw

from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.cluster import ClusterMember
from endwell.testing.faults.of_processes import busy_workers, has_substance, names_of
from endwell.testing.faults.registry import fault
from endwell.testing.occasions import TransactionPoint
from endwell.testing.simulation import Simulation

MANY: int = 100_000


def _break_for_one(
    sim: Simulation,
    name: str,
    point: TransactionPoint,
    error: type[apsw.Error],
    times: int,
    suits: Callable[[Sequence[c.Command]], bool] = has_substance,
) -> None:
    """Break transactions of one process: the first that has a suitable one."""
    victim: list[ClusterMember] = []

    def break_it(member: ClusterMember, commands: Sequence[c.Command]) -> None:
        if not victim and suits(commands):
            victim.append(member)
            sim.count_fault(name, member.name, names_of(commands))
        if victim and member is victim[0]:
            raise error(name)

    sim.wait_at(point, break_it, times=times)


@fault(weight=4)
def file_busy_for_a_moment(sim: Simulation, dice: Dice) -> None:
    """Another process holds the file when a transaction begins; a moment later it is free."""
    _break_for_one(sim, "file_busy_for_a_moment", "begin", apsw.BusyError, 1)


@fault(weight=4)
def file_busy_too_long(sim: Simulation, dice: Dice) -> None:
    """Another process holds the file for longer than a transaction waits."""
    _break_for_one(sim, "file_busy_too_long", "begin", apsw.BusyError, dice.randint(2, 12))


@fault(weight=4)
def commit_fails(sim: Simulation, dice: Dice) -> None:
    """The disk refuses a commit; nothing of it is kept."""
    _break_for_one(sim, "commit_fails", "commit", apsw.IOError, dice.choice((1, 1, 3)))


@fault(weight=6)
def answer_of_a_commit_lost(sim: Simulation, dice: Dice) -> None:
    """A commit takes place, and its process receives an error."""
    _break_for_one(sim, "answer_of_a_commit_lost", "committed", apsw.IOError, 1)


@fault(weight=3)
def reading_fails(sim: Simulation, dice: Dice) -> None:
    """Reads of the store fail for a moment."""
    times = dice.choice((1, 2, 6))
    _break_for_one(sim, "reading_fails", "read", apsw.IOError, times, lambda commands: True)


@fault(weight=3)
def disk_full(sim: Simulation, dice: Dice) -> None:
    """For a while no process can write."""
    seconds = dice.choice((1, 15, 120, 400))
    until: list[int] = []

    def refuse_commit(member: ClusterMember, commands: Sequence[c.Command]) -> None:
        if not until and has_substance(commands):
            until.append(sim.elapsed_us + seconds * SECOND)
            sim.count_fault("disk_full", "machine", f"{seconds} s")
        if until and sim.elapsed_us < until[0]:
            raise apsw.FullError("disk_full")

    sim.wait_at("commit", refuse_commit, times=MANY, within=300 + seconds)


@fault(weight=3)
def store_away_past_the_lease(sim: Simulation, dice: Dice) -> None:
    """For longer than the lease no process, or only one, can reach the store; no process dies."""
    seconds = sim.lease_seconds * (1.2 + 2 * dice.random())
    spares_one, begun = dice.happens(0.3), list[int]()
    spared: list[ClusterMember] = []

    def begin_outage(member: ClusterMember) -> None:
        begun.append(sim.elapsed_us)
        others = [one for one in sim.cluster.members.values() if one is not member]
        spared.extend(dice.choices(others, k=1) if spares_one and others else ())
        sim.count_fault("store_away_past_the_lease", "machine", f"{seconds:.0f} s")

    def refuse(member: ClusterMember, commands: Sequence[c.Command]) -> None:
        if not begun and commands and has_substance(commands) and busy_workers(sim):
            begin_outage(member)
        if begun and sim.elapsed_us < begun[0] + seconds * SECOND and member not in spared:
            raise apsw.IOError("store_away_past_the_lease")

    sim.wait_at("begin", refuse, times=MANY, within=300 + int(seconds))
    sim.wait_at("read", refuse, times=MANY)
