"""Submitting, draining and waiting for one result: the figures under load and at rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from endwell.bench import agents
from endwell.bench.checks import CheckedRun, check
from endwell.bench.place import BenchPlace, Ground
from endwell.bench.rows import Row, Sizes
from endwell.demo.crew import CrewMember
from endwell.model import commands as c
from endwell.runtime.processes import rss_bytes

BREATH_SECONDS = 0.005
"""Between two submissions that measure latency, so that the worker is idle again."""


class Measured(msgspec.Struct, frozen=True):
    """Rows that hold only if there are no problems."""

    rows: list[Row]
    problems: list[str]


class Measurement(msgspec.Struct, frozen=True):
    """One thing that is measured by itself, and the rows that it gives."""

    title: str
    gives: tuple[str, ...]
    run: Callable[[], Awaitable[Measured]]


def measurements(ground: Ground, sizes: Sizes) -> list[Measurement]:
    """Submitting, draining, waiting; then the same at several backlogs."""
    bulk = partial(_bulk, ground, sizes.bulk)
    latencies = ("idle_latency_p50", "idle_latency_p99")
    found = [
        Measurement(
            "submit one by one", ("submit_one_by_one",), partial(_one_by_one, ground, sizes.one_by_one)
        ),
        Measurement("drain by one worker", ("submit_bulk", "drain_1_worker"), partial(bulk, workers=1)),
        Measurement("drain by two workers", ("drain_2_workers",), partial(bulk, workers=2)),
        Measurement("idle latency", latencies, partial(_latency, ground, sizes.latency)),
    ]
    return found + [_at(ground, n, sizes.claims) for n in sizes.backlogs]


def _at(ground: Ground, backlog: int, claims: int) -> Measurement:
    gives = ("drain_at", "claim_p50_at", "claim_p99_at", "memory_after")
    names = tuple(f"{name}_{backlog}" for name in gives)
    return Measurement(f"backlog of {backlog:,}", names, partial(_backlog, ground, backlog, claims))


def compared(rows: list[Row], backlogs: tuple[int, ...]) -> list[Row]:
    """The drain rate at the largest backlog against that at the smallest, if both figures hold."""
    least, most = min(backlogs), max(backlogs)
    at = {row.name: row for row in rows}
    small, large = at.get(f"drain_at_{least}"), at.get(f"drain_at_{most}")
    if small is None or large is None:
        return []
    return [Row(f"drain_{most}_vs_{least}", large.store, 100 * large.value / small.value, "%", most)]


async def _one_by_one(ground: Ground, count: int) -> Measured:
    async with ground.place() as place:
        begin = place.runtime.clock.monotonic()
        for number in range(count):
            place.ids.append((await place.node.client.submit(agents.AGENT, number)).id)
        passed = place.runtime.clock.monotonic() - begin
        checked, _ = await _drained(place, 1)
        rows = [Row("submit_one_by_one", ground.kind, count / passed, "tasks/s", count)]
        return Measured(rows, checked.problems)


async def _bulk(ground: Ground, count: int, *, workers: int) -> Measured:
    async with ground.place() as place:
        begin = place.runtime.clock.monotonic()
        await place.submit(count)
        passed = place.runtime.clock.monotonic() - begin
        checked, _ = await _drained(place, workers)
        rate = count / checked.drain_seconds
        plural = "worker" if workers == 1 else "workers"
        rows = [Row(f"drain_{workers}_{plural}", ground.kind, rate, "tasks/s", count)]
        if workers == 1:
            rows.insert(0, Row("submit_bulk", ground.kind, count / passed, "tasks/s", count))
        return Measured(rows, checked.problems)


async def _drained(place: BenchPlace, workers: int) -> tuple[CheckedRun, int]:
    """Start real workers on the backlog, wait for the last end, read all of it back. Also: memory."""
    since = await place.node.store.now()
    members = await place.start("worker", workers)
    await place.wait_drained()
    memory = _memory(members)
    await place.stop()
    return await check(place, since), memory


def _memory(members: list[CrewMember]) -> int:
    return max(rss_bytes(member.pid) or 0 for member in members)


async def _latency(ground: Ground, count: int) -> Measured:
    """From the call of `submit` to the result in hand, with one warm worker that has nothing else to do."""
    async with ground.place() as place:
        await place.start("worker")
        times: list[float] = []
        for number in range(-20, count):
            passed = await _round_trip(place)
            if number >= 0:
                times.append(passed)
            await place.runtime.sleep(BREATH_SECONDS)
        await place.stop()
        rows = percentiles("idle_latency", ground.kind, times)
        return Measured(rows, (await check(place)).problems)


async def _round_trip(place: BenchPlace) -> float:
    number = len(place.ids)
    begin = place.runtime.clock.monotonic()
    handle = await place.node.client.submit(agents.AGENT, number)
    await handle.result(timeout=30)
    passed = place.runtime.clock.monotonic() - begin
    place.ids.append(handle.id)
    return passed


async def _backlog(ground: Ground, count: int, claims: int) -> Measured:
    async with ground.place() as place:
        await place.submit(count)
        times = await _claims(place, claims)
        checked, memory = await _drained(place, 1)
        rows = [
            Row(f"drain_at_{count}", ground.kind, count / checked.drain_seconds, "tasks/s", count),
            *percentiles("claim", ground.kind, times, f"_at_{count}"),
            Row(f"memory_after_{count}", ground.kind, memory / 2**20, "MiB", count),
        ]
        return Measured(rows, checked.problems)


async def _claims(place: BenchPlace, count: int) -> list[float]:
    """How long one claim through the door takes at this backlog. What was taken is handed back at no cost."""
    session = place.runtime.ids.new()
    await place.node.store.one(_opened(place, session))
    times = []
    for _ in range(count):
        begin = place.runtime.clock.monotonic()
        reply = await place.node.store.one(_claim(place, session))
        times.append(place.runtime.clock.monotonic() - begin)
        for offer in reply.taken:
            await place.node.store.one(_handed_back(place, offer.task.id, offer.task.attempt_id or ""))
    await place.node.store.one(c.CloseSession(**_about(place), session_id=session))
    return times


def _about(place: BenchPlace) -> dict[str, Any]:
    return {"command_id": place.runtime.ids.new(), "namespace": place.namespace, "actor": "bench"}


def _opened(place: BenchPlace, session: str) -> c.OpenSession:
    return c.OpenSession(
        **_about(place),
        session_id=session,
        kind="worker",
        name="bench",
        host="bench",
        pid=0,
        agents=(agents.AGENT,),
        concurrency=1,
        lease=600_000_000,
    )


def _claim(place: BenchPlace, session: str) -> c.ClaimNext:
    return c.ClaimNext(**_about(place), session_id=session, agents=(agents.AGENT,), limit=1)


def _handed_back(place: BenchPlace, task_id: str, attempt_id: str) -> c.HandBack:
    return c.HandBack(**_about(place), task_id=task_id, attempt_id=attempt_id)


def percentiles(name: str, store: str, seconds: list[float], suffix: str = "") -> list[Row]:
    """The middle and the slow end of some times, in milliseconds."""
    ordered = sorted(seconds)
    return [
        Row(f"{name}_p{p}{suffix}", store, ordered[len(ordered) * p // 100] * 1000, "ms", len(ordered))
        for p in (50, 99)
    ]
