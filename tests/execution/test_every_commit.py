"""One long task, and its worker killed or frozen at every single commit of it, before and after.

After each of them the task finishes with the same result, no recorded function is called again, and each
effect's function is called exactly once.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from endwell.errors import EndwellError
from endwell.model.effect import Verdict
from endwell.model.task import Task
from endwell.operate.verify import verify
from endwell.runtime import SystemClock
from endwell.runtime.processes import Child
from tests.execution.ten_steps import EFFECTS, EXPECTED, STEPS, Sink, app_for, started
from tests.execution.world import TINY, World, eventually

pytestmark = pytest.mark.timeout(500)

AT_ONCE = 4
SETTINGS: dict[str, object] = {
    **TINY,
    "worker.lease_seconds": 1.5,  # a busy machine alone must not take a healthy worker's lease
    "worker.heartbeat_seconds": 0.2,
    "worker.effect_margin_seconds": 0.1,
    "worker.watchdog_interval_seconds": 0.1,
}


class Run:
    """One task with its world around it: a worker process, a supervisor, and whoever answers."""

    def __init__(self, url: str, home: Path, **strike: Any) -> None:
        self.sink = Sink(home / f"{uuid.uuid4().hex}.sink")
        self.about = {"sink": str(self.sink._path), "settings": SETTINGS, **strike}
        self.world = World(url, settings=SETTINGS, clock=SystemClock())
        self.children: list[Child] = []
        self.struck = False

    def worker(self, **strike: Any) -> Child:
        about = {**self.about, "url": self.world.app.url, "namespace": self.world.namespace, **strike}
        child = started(about)
        self.children.append(child)
        return child

    async def to_the_end(self) -> list[Any]:
        app = self.world.app
        app.agents.update(app_for(app.url, self.world.namespace, SETTINGS, self.sink).agents)
        async with self.world as world:
            pmo = await world.supervisor()
            await world.registered("long", "helper")
            handle = await world.client.submit("long")
            first = self.worker()
            others: list[Child] = []
            answering = asyncio.ensure_future(self._answer(handle.id))
            try:
                await self._until_ended(pmo, handle, first, others)
                value: list[Any] = await handle.result(timeout=10)
            finally:
                answering.cancel()
                await self._end_all()
            report = await verify(world.store, [world.namespace])
            assert report["ok"], report
            effects = await world.store.effects_page(world.namespace)
            assert {effect.status for effect in effects} == {"done"}
            return value

    async def _until_ended(self, pmo: Any, handle: Any, first: Child, others: list[Child]) -> None:
        """Tick; once the first worker is struck, another takes over, and a frozen one wakes up later."""

        async def ended() -> bool:
            await pmo.run_once()
            if not self.struck and self._was_struck(first):
                self.struck = True
                others.append(self.worker(at=0))
            task = await handle.task()
            if self.struck and self.about.get("how") == "freeze" and _is_taken_over(task):
                first.thaw()
            if task.reason == "effect_unknown":
                await self._look_and_settle(pmo, task.id)
            return bool(task.is_ended)

        await eventually(ended, f"the task ends ({self.about})", seconds=120)

    async def _look_and_settle(self, pmo: Any, task_id: str) -> None:
        """A person who is asked lets the frozen worker find out that its lease is gone, looks, and says."""
        store, namespace = self.world.store, self.world.namespace

        async def nobody_lapsed() -> bool:
            await pmo.run_once()  # a session that its worker has given up is ended by the supervisor
            now = await store.now()
            return all(session.lease_until > now for session in await store.open_sessions(namespace))

        await eventually(nobody_lapsed, "the woken worker has noticed")
        for effect in await store.effects_page(namespace, status="unknown", task_id=task_id):
            name = effect.key.partition(":")[0]
            verdict: Verdict = "done" if self.sink.has(name, effect.key) else "not_done"
            value = f"{name} is done" if verdict == "done" else None
            await self.world.client.settle_effect(effect.key, verdict, by="ada", result=value)

    def _was_struck(self, child: Child) -> bool:
        try:
            while (line := child.read_line(0.01)) is not None:
                if line == "struck":
                    return True
        except TimeoutError:
            return False
        return child.poll() is not None

    async def _answer(self, task_id: str) -> None:
        """Whoever sits outside: answers the tool, approves what is asked."""
        store, namespace, client = self.world.store, self.world.namespace, self.world.client
        while True:
            for call in await store.open_calls(namespace, task_id=task_id):
                await _ignoring_refusals(client.answer(call.tool_call_id, "it is 42"))
            for approval in await store.approvals_page(namespace, task_id=task_id):
                await _ignoring_refusals(client.approve(approval.id, by="ada"))
            await asyncio.sleep(0.05)

    async def _end_all(self) -> None:
        for child in self.children:
            child.kill()
            await asyncio.get_running_loop().run_in_executor(None, child.wait, 10)
            child.close()


def _is_taken_over(task: Task) -> bool:
    return task.is_ended or task.status == "blocked" or (task.crash_count > 0 and task.attempt_id is not None)


async def _ignoring_refusals(asked: Any) -> None:
    try:
        await asked
    except EndwellError:
        return


async def _commits_of_a_quiet_run(url: str, home: Path) -> int:
    """How many commits of its worker write events when nothing goes wrong: a trap that is never reached."""
    run = Run(url, home, at=1000, where="before", how="kill")
    assert await run.to_the_end() == EXPECTED
    assert not run.struck
    async with World(url, settings=SETTINGS, clock=SystemClock()) as world:
        events = await world.store.events_after(run.world.namespace, "", 500)
    return len({logged.event.command_id for logged in events})


@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_worker_killed_at_any_commit_loses_nothing_and_doubles_nothing(
    store_url: str, tmp_path: Path, where: str
) -> None:
    commits = await _commits_of_a_quiet_run(store_url, tmp_path)
    limit = asyncio.Semaphore(AT_ONCE)
    struck = 0

    async def one(at: int) -> None:
        nonlocal struck
        async with limit:
            run = Run(store_url, tmp_path, at=at, where=where, how="kill")
            assert await run.to_the_end() == EXPECTED
            struck += run.struck
            _check_calls(run.sink, repeated=1 if where == "before" else 0)

    await asyncio.gather(*(one(at) for at in range(1, commits + 1)))
    assert struck >= 20


async def test_a_worker_frozen_at_any_commit_and_woken_later_doubles_nothing(
    store_url: str, tmp_path: Path
) -> None:
    commits = await _commits_of_a_quiet_run(store_url, tmp_path)
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(at: int) -> None:
        async with limit:
            run = Run(store_url, tmp_path, at=at, where="after", how="freeze")
            await run.to_the_end()
            _check_calls(run.sink, repeated=1)

    await asyncio.gather(*(one(at) for at in range(1, commits + 1)))


def _check_calls(sink: Sink, *, repeated: int) -> None:
    """Only a step that was killed before its record may run again, and that is one at most."""
    calls = Counter(sink.calls())
    assert {name: calls[name] for name in EFFECTS} == dict.fromkeys(EFFECTS, 1)
    again = sum(calls[name] - 1 for name in (*STEPS, "helper"))
    assert 0 <= again <= repeated, calls
