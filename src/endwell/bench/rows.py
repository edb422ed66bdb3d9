"""What a bench run measures and how much of it; its rows, and the floors they are shown beside. Pure data."""

from __future__ import annotations

import msgspec


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    one_by_one: int = 3_000
    bulk: int = 50_000
    latency: int = 500
    claims: int = 200
    idle_seconds: float = 20.0
    backlogs: tuple[int, ...] = (10_000, 100_000)
    steps_alone: int = 3_000
    step_tasks: int = 3_000
    steps_each: int = 10
    resumes: int = 200
    replayed_steps: int = 1_000


QUICK = Sizes(
    one_by_one=200,
    bulk=2_000,
    latency=200,
    claims=20,
    idle_seconds=6.0,
    backlogs=(500, 2_000),
    steps_alone=200,
    step_tasks=200,
    resumes=20,
    replayed_steps=100,
)
USUAL = Sizes()
FULL = Sizes(backlogs=(10_000, 100_000, 1_000_000))


class Row(msgspec.Struct, frozen=True):
    """One figure; `n` is how many tasks, or seconds, it rests on."""

    name: str
    store: str
    value: float
    unit: str
    n: int


FLOORS: dict[str, dict[str, float]] = {
    "sqlite": {
        "submit_one_by_one": 2_500,
        "submit_bulk": 30_000,
        "drain_1_worker": 12_000,
        "idle_latency_p50": 2.5,
        "idle_latency_p99": 8,
        "steps_one_task": 1_500,
        "steps_many_tasks": 15_000,
        "resume_p50": 10,
        "replay_1000_steps": 50,
    },
    **{
        f"redis+{store}": {
            "submit_one_by_one": 1_500,
            "submit_bulk": 15_000,
            "drain_1_worker": 8_000,
            "idle_latency_p50": 5,
            "idle_latency_p99": 12,
            "resume_p50": 15,
        }
        for store in ("sqlite", "postgresql")
    },
    "postgresql": {
        "submit_one_by_one": 1_500,
        "submit_bulk": 20_000,
        "drain_1_worker": 8_000,
        "idle_latency_p50": 5,
        "idle_latency_p99": 12,
        "steps_one_task": 1_200,
        "steps_many_tasks": 8_000,
        "resume_p50": 15,
        "replay_1000_steps": 80,
    },
}
"""What a first version is to reach on a machine of two cores. Shown, never asserted."""
_EVERYWHERE: dict[str, float] = {"idle_cpu_worker": 1, "idle_cpu_pmo": 1, "drain_1000000_vs_10000": 90}
MORE_IS_BETTER = ("tasks/s", "steps/s", "%")


def floor_of(row: Row) -> float | None:
    """The floor for a row, where there is one."""
    return FLOORS[row.store].get(row.name, _EVERYWHERE.get(row.name))


def against_floor(row: Row) -> float | None:
    """How many times as good as the floor: 2 is twice as fast, or half the wait."""
    floor = floor_of(row)
    if floor is None or not row.value:
        return None
    return row.value / floor if row.unit in MORE_IS_BETTER else floor / row.value


BARE = "bare_"


def against_bare(row: Row, rows: list[Row]) -> float | None:
    """Which share of the bare loop's speed on the same machine this is."""
    limit = next((other for other in rows if other.name == BARE + row.name), None)
    return row.value / limit.value if limit is not None and limit.value else None
