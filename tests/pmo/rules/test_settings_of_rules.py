"""Each setting of a rule moves that rule alone, and may switch it off."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from endwell import Context
from endwell.errors import BadSetting
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.pmo.service import Pmo
from endwell.policy.limits import Limits
from endwell.settings import Settings, override
from endwell.testing import World as VirtualWorld
from tests.machine.stages import NOW, dispatched_task, give, queued_task, to
from tests.support.world import TINY, World, eventually

KEYS = {
    "pmo.dispatched_retry_seconds": "ring_at",
    "pmo.dispatched_timeout_seconds": "dispatch_by",
    "pmo.active_reap_seconds": "progress_by",
}


def limits(**changes: object) -> Limits:
    return Limits.of(override(Settings(), changes, source="test"), "ada")


def taken(task: Task, key: str, with_limits: Limits) -> Task:
    """The task in the status that the rule of the key applies to."""
    claimed = key == "pmo.active_reap_seconds"
    return give(queued_task(), to(c.Claim if claimed else c.Dispatch), limits=with_limits)


@pytest.mark.covers("S0.73", "S0.74", "S0.77")
@pytest.mark.parametrize(("key", "deadline"), KEYS.items())
def test_a_key_moves_the_deadline_of_its_rule_and_no_other(key: str, deadline: str) -> None:
    usual, changed = taken(queued_task(), key, limits()), taken(queued_task(), key, limits(**{key: 17}))

    assert getattr(changed, deadline) == NOW + 17 * SECOND
    for other in set(KEYS.values()) - {deadline}:
        assert getattr(changed, other) == getattr(usual, other)


@pytest.mark.covers("S0.73", "S0.74")
@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("key", ["pmo.dispatched_retry_seconds", "pmo.dispatched_timeout_seconds"])
def test_zero_or_less_switches_a_rule_off_and_ends_by_still_holds(key: str, value: int) -> None:
    task = taken(queued_task(), key, limits(**{key: value}))

    assert getattr(task, KEYS[key]) is None
    assert task.ends_by == dispatched_task().ends_by
    both = {name: value for name in KEYS if name.startswith("pmo.dispatched")}
    alone = taken(queued_task(), key, limits(**both))
    assert (alone.clock_rule, alone.clock_at) == ("ends_by", alone.ends_by)


@pytest.mark.covers("S0.80")
def test_the_suspend_timeout_is_the_grace_after_the_last_wait() -> None:
    changed = limits(**{"worker.suspend_timeout_seconds": 7})
    task = give(give(queued_task(), to(c.Claim), limits=changed), to(c.Suspend), limits=changed)

    assert (task.suspend_by, task.wait_by) == (NOW + 67 * SECOND, NOW + 60 * SECOND)


@pytest.mark.covers("S0.28", "S0.80")
async def test_the_suspend_timeout_is_how_long_a_tool_has_to_answer(tmp_path: Path) -> None:
    settings = {"worker.suspend_timeout_seconds": 7}
    async with World(f"sqlite:///{tmp_path}/endwell.db", settings=settings) as world:

        @world.app.agent("asker")
        async def asker(ctx: Context) -> None:
            await ctx.tool("oracle")

        worker = await world.started_worker()
        task = await world.brought_to(worker, await world.submitted("asker"), "suspended")
        assert (task.wait_by or 0) - task.updated_at == 7 * SECOND


def test_the_reap_rule_cannot_be_switched_off() -> None:
    with pytest.raises(BadSetting, match="must be at least"):
        limits(**{"pmo.active_reap_seconds": 0})


@pytest.mark.covers("S0.72", "S0.79", "S0.82")
@pytest.mark.parametrize("who", ["pmo", "worker"])
async def test_each_watchdog_ticks_by_its_own_interval(tmp_path: Path, who: str) -> None:
    """The other watchdog has an interval of a day: it ticks only at its start."""
    other = {"pmo": "worker", "worker": "pmo"}[who]
    intervals = {f"{who}.watchdog_interval_seconds": 0.05, f"{other}.watchdog_interval_seconds": 86_400.0}
    async with World(f"sqlite:///{tmp_path}/endwell.db", settings={**TINY, **intervals}) as world:

        @world.app.agent("clerk")
        async def clerk() -> None: ...

        ticks = {"pmo": 0, "worker": 0}
        pmo = world.node.pmo()
        await pmo.start()
        worker = await world.started_worker()
        usual = {"pmo": pmo.run_once, "worker": worker.watchdog.run_once}

        def counting(name: str) -> object:
            async def tick() -> None:
                ticks[name] += 1
                await usual[name]()

            return tick

        pmo.run_once = counting("pmo")  # type: ignore[method-assign, assignment]
        worker.watchdog.run_once = counting("worker")  # type: ignore[method-assign, assignment]
        runs = [world.app.runtime.spawn(pmo.run(), "pmo"), world.app.runtime.spawn(worker.run(), "worker")]
        await eventually(lambda: ticks[who] >= 4)
        pmo.stop()
        worker.stop()
        for run in runs:
            await run
        await pmo.close()
        assert ticks[other] == 1


@pytest.mark.covers("S2.7")
async def test_a_pmo_ticks_by_its_configured_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    ticked_at: list[int] = []
    usual = Pmo.run_once
    with VirtualWorld(settings={"pmo.watchdog_interval_seconds": 30.0}) as world:

        async def noting(pmo: Pmo) -> None:
            ticked_at.append(world.now_us)
            await usual(pmo)

        monkeypatch.setattr(Pmo, "run_once", noting)

        @world.agent("clerk")
        async def clerk() -> None: ...

        await world.submit("clerk")
        await world.advance(minutes=10)
    gaps = [(later - earlier) / SECOND for earlier, later in pairwise(ticked_at)]
    assert len(gaps) in (19, 20)
    assert gaps == pytest.approx([30.0] * len(gaps), abs=0.5)
