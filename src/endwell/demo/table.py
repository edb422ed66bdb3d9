"""The table that `endwell demo` ends with, and the verdict on it. Pure."""

from __future__ import annotations

import msgspec

LEAST_VICTIMS = 5
LEAST_RECLAIMS = 5
LEAST_REFUSED = 1


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """One SIGKILL. `held_lease` is the log's word: tasks were later taken from the victim's session."""

    pid: int
    signal: str
    at: str
    held_lease: bool
    role: str
    name: str
    tasks_held: int


class Freeze(msgspec.Struct, frozen=True, kw_only=True):
    """One SIGSTOP past the lease, and what the woken worker still tried to write."""

    pid: int
    at: str
    woken_at: str
    name: str
    tasks_held: int
    refused: int


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader of store and sink found at rest."""

    submitted: int
    ended: dict[str, int]
    kills: list[Kill]
    freezes: list[Freeze]
    reclaims: int
    refused_stale: int
    retries: int
    sink_calls: int
    effects: int
    effects_duplicated: int
    effects_settled: int
    lost: int
    stuck: int
    doubly_finished: int
    log_problems: int

    @property
    def victims(self) -> int:
        """Workers that were killed while they held work; a PMO or an idle worker is none."""
        return sum(kill.held_lease for kill in self.kills)


def shortcomings(table: Table) -> list[str]:
    """Why the run does not show what it is to show; empty when it does."""
    nothing_may = {
        "task lost": table.lost,
        "task stuck": table.stuck,
        "task finished twice": table.doubly_finished,
        "effect that happened twice": table.effects_duplicated,
        "task with a broken log": table.log_problems,
    }
    at_least = {
        "victim that held work when killed": (table.victims, LEAST_VICTIMS),
        "reclaim": (table.reclaims, LEAST_RECLAIMS),
        "refused stale write": (table.refused_stale, LEAST_REFUSED),
        "submitted task": (table.submitted, 1),
        "effect": (table.effects, 1),
    }
    wrong = [f"{count} × {what}" for what, count in nothing_may.items() if count]
    wrong += [f"{n} × {what}, at least {least} wanted" for what, (n, least) in at_least.items() if n < least]
    return wrong
