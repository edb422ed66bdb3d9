"""Real processes killed and frozen in the windows of an effect; a sink file outside counts its calls."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from endwell import AsyncHandle
from endwell.runtime import SystemClock
from tests.patience import PATIENCE_SECONDS
from tests.support import effect_process
from tests.support.effect_process import KEY
from tests.support.ten_steps import Sink
from tests.support.world import TINY, World, eventually
from tests.worker.test_processes import Crew

SETTINGS: dict[str, object] = {**TINY, "worker.effect_margin_seconds": 0.1}


class Scene:
    """A task whose first worker is interrupted in a window of its effect, and a second that takes over."""

    def __init__(self, crew: Crew, home: Path) -> None:
        self.crew = crew
        self.home = home
        self.world = crew.world
        self.sink = Sink(home / "sink")
        self.world.app.agents.update(self._app("").agents)

    def _app(self, window: str) -> Any:
        return effect_process.app_for(self.world.app.url, self.world.namespace, SETTINGS, self.home, window)

    def worker(self, window: str = "") -> Any:
        about = {"url": self.world.app.url, "namespace": self.world.namespace, "settings": SETTINGS}
        child = effect_process.started({**about, "home": str(self.home), "window": window})
        self.crew.children.append(child)
        return child

    async def interrupted(self, window: str, **options: Any) -> AsyncHandle:
        """A task whose worker has died in that window."""
        child = self.worker(window)
        handle = await self.world.submitted("payer", options)
        await self.crew.supervised(lambda: _is_dead(child), "the first worker has died")
        return handle

    async def until(self, handle: AsyncHandle, *statuses: str) -> None:
        async def reached() -> bool:
            return (await handle.task()).status in statuses

        await self.crew.supervised(reached, f"the task is {' or '.join(statuses)}")


async def _is_dead(child: Any) -> bool:
    return child.poll() is not None


@pytest.fixture
async def scene(store_url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    async with World(store_url, settings=SETTINGS, clock=SystemClock()) as world:
        crew = Crew(world)
        crew.pmo = await world.supervisor()
        try:
            yield Scene(crew, tmp_path)
        finally:
            crew.end()


@pytest.mark.covers("S3.36", "T15")
async def test_killed_after_the_intent_and_before_the_call(scene: Scene) -> None:
    handle = await scene.interrupted("before the call")
    assert scene.sink.calls() == []
    scene.worker()
    await scene.until(handle, "succeeded")
    assert await handle.result(PATIENCE_SECONDS) == "receipt for 5"
    assert scene.sink.calls() == ["pay"]


@pytest.mark.covers("S3.36", "S4.34", "T15")
async def test_killed_after_the_call_and_before_its_record(scene: Scene) -> None:
    handle = await scene.interrupted("after the call")
    scene.worker()
    await scene.until(handle, "succeeded")
    assert await handle.result(PATIENCE_SECONDS) == "found 5"
    assert scene.sink.calls() == ["pay"]


async def test_an_effect_of_a_dead_process_is_reconciled_before_its_time_is_over(scene: Scene) -> None:
    """The effect might have taken five minutes; its process is gone, and it can be seen that it was done."""
    handle = await scene.interrupted("after the call", timeout=300)
    scene.worker()
    await scene.until(handle, "succeeded")
    assert await handle.result(PATIENCE_SECONDS) == "found 5"
    assert scene.sink.calls() == ["pay"]


@pytest.mark.covers("S3.36", "T15")
@pytest.mark.parametrize("window", ["before the call", "after the call"])
async def test_a_person_is_asked_after_a_kill_without_reconcile(scene: Scene, window: str) -> None:
    handle = await scene.interrupted(window, reconcile=False)
    scene.worker()
    await scene.until(handle, "blocked")
    calls = scene.sink.calls()
    assert calls == ([] if window == "before the call" else ["pay"])
    task = await handle.task()
    assert (task.reason, task.owner) == ("effect_unknown", scene.world.app.owner)
    await scene.world.client.settle_effect(KEY, "done", by="ada", result="looked it up")
    await scene.until(handle, "succeeded")
    assert await handle.result(PATIENCE_SECONDS) == "looked it up"
    assert scene.sink.calls() == calls


@pytest.mark.covers("S3.38", "S3.41", "S3.48")
async def test_killed_after_the_effect_store_has_it_and_before_the_log_does(scene: Scene) -> None:
    (scene.home / "foreign").touch()
    handle = await scene.interrupted("after the put", reconcile=False)
    assert "effect.done" not in await scene.world.history(handle)
    scene.worker()
    await scene.until(handle, "succeeded")
    assert await handle.result(PATIENCE_SECONDS) == "receipt for 5"
    assert scene.sink.calls() == ["pay"]


@pytest.mark.covers("S3.36")
async def test_frozen_past_its_lease_between_intent_and_call(scene: Scene) -> None:
    """Another worker has executed the effect; the woken one finds that its lease is gone."""
    (scene.home / "foreign").touch()
    frozen = scene.worker("between intent and call")
    handle = await scene.world.submitted("payer", {"accept_risk": True})
    await scene.crew.supervised(lambda: _exists(scene.home / "reached"), "it has intended the effect")
    await scene.world.freeze_between_commits(frozen)
    (scene.home / "go-on").touch()
    scene.worker()
    await scene.until(handle, "succeeded")
    assert scene.sink.calls() == ["pay"]
    frozen.thaw()

    async def has_noticed() -> bool:
        """Its lease had lapsed: it renews the session, or opens a new one if that is closed."""
        now = await scene.world.store.now()
        found = await scene.world.store.open_sessions(scene.world.namespace)
        return any(one.pid == frozen.pid and one.lease_until > now for one in found)

    await scene.crew.supervised(has_noticed, "the woken worker has a lease again")
    assert scene.sink.calls() == ["pay"]
    assert await handle.result(PATIENCE_SECONDS) == "receipt for 5"


async def _exists(path: Path) -> bool:
    return os.access(path, os.F_OK)


@pytest.mark.parametrize("window", ["a thread", "a def function", "a subprocess", "a subprocess of asyncio"])
async def test_a_rolling_restart_does_not_repeat_a_call_that_works_on(scene: Scene, window: str) -> None:
    """In a thread, for which the old process waits, or in a process that outlives it."""
    old = scene.worker(window)
    handle = await scene.world.submitted("payer", {})
    await eventually((scene.home / "reached").exists, "the call is in progress")
    task = await handle.task()
    scene.worker()
    os.kill(old.pid, signal.SIGTERM)

    async def is_left() -> bool:
        session = await scene.world.store.session(scene.world.namespace, task.session_id or "")
        return session is not None and session.end_reason is not None

    await eventually(is_left)
    session = await scene.world.store.session(scene.world.namespace, task.session_id or "")
    assert session is not None
    assert session.end_reason == ("left_processes" if "subprocess" in window else "left")
    if window != "a def function":  # a daemon thread of ours ends with its process, which is gone then
        await scene.until(handle, "blocked")
        assert not scene.sink.has("pay", KEY)
        (scene.home / "go-on").touch()
        await eventually(lambda: old.poll() is not None, "the old process has ended")
        await scene.world.client.settle_effect(KEY, "done", "receipt", by="ada")
    await scene.until(handle, "succeeded")
    assert scene.sink.calls().count("pay") == 1
