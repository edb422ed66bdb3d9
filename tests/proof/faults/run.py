"""One long task under a real fault: its processes, its people, and what must hold in the end."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, Final, Self, cast

from endwell import Endwell
from endwell.errors import EndwellError, WrongStatus
from endwell.model.effect import Verdict
from endwell.model.facts import TaskReclaimed
from endwell.operate.record.verify import verify
from endwell.runtime import SystemClock
from endwell.runtime.child_process import ChildProcess
from endwell.store.contract import Store
from tests.patience import PATIENCE_SECONDS
from tests.proof.faults.fault import Fault
from tests.support.ten_steps import EFFECTS, EXPECTED, STEPS, Sink, app_for, started
from tests.support.world import TINY, World, eventually

TICK_SECONDS: Final = 0.03
"""Time between two ticks of the supervisor, a fiftieth of a lease."""
SETTINGS: Final[dict[str, object]] = {
    **TINY,
    "worker.lease_seconds": 1.5,  # long enough for a healthy worker on a busy machine
    "worker.heartbeat_seconds": 0.2,
    "pmo.crash_limit": 40,  # a slow line, or a very busy machine, may cost a lease so short again and again
    "pmo.runaway_limit": 100,
    "worker.effect_margin_seconds": 0.1,
    "worker.watchdog_interval_seconds": 0.1,
}


class Place:
    """The store and the directory of runs. The test opens the store once, because connecting is slow."""

    def __init__(self, url: str, home: Path) -> None:
        self.url = url
        self.home = home
        self.store: Store

    async def __aenter__(self) -> Self:
        self.store = Endwell(self.url, settings=SETTINGS).open_store()
        await self.store.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()

    async def count_commits(self) -> int:
        """Count the commits of a worker that write events when nothing goes wrong."""
        run = Run(self, Quiet())
        await run.run_to_end()
        events = await self.store.events_after(run.world.namespace, "", 500)
        return len({logged.event.command_id for logged in events})


class _KeptOpen:
    """A store that stays open when one of its users closes it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Onlookers(World):
    """A world that submits, supervises and answers. Its doorbells are silent: workers poll often enough."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.url, settings=SETTINGS, clock=SystemClock())
        self.app.is_silent = True
        self.app.open_store = lambda ring=None: cast("Store", _KeptOpen(place.store))  # type: ignore[method-assign]


class Run:
    """One run: the worker that the fault hits, its successor, a supervisor, and the people who answer."""

    def __init__(self, place: Place, fault: Fault) -> None:
        self.fault = fault
        self.sink = Sink(place.home / f"{uuid.uuid4().hex}.sink")
        self.world = _Onlookers(place)
        self.task_id = ""
        self._children: list[ChildProcess] = []
        self._victim = 0

    def worker(self, url: str | None = None, **trap: Any) -> ChildProcess:
        """Start a worker process; with another URL if the fault is on the connection."""
        about = {"sink": str(self.sink.path), "settings": SETTINGS, "namespace": self.world.namespace}
        child = started({**about, "url": url or self.world.app.url, **trap})
        self._children.append(child)
        self._victim = self._victim or child.pid
        return child

    async def run_to_end(self) -> None:
        """Run the task from its submission to its result, and check what must hold."""
        app = self.world.app
        app.agents.update(app_for(app.url, self.world.namespace, SETTINGS, self.sink).agents)
        async with self.world as world, contextlib.AsyncExitStack() as stack:
            pmo = await world.supervisor()
            await world.registered("long", "helper")
            handle = await world.client.submit("long")
            self.task_id = handle.id
            stack.push_async_callback(self._end_all)
            answering = asyncio.ensure_future(self._answer())
            stack.callback(answering.cancel)
            await self.fault.begin(self, stack)
            await self._until_ended(pmo, handle)
            value = await handle.result(PATIENCE_SECONDS)
            await self._end_all()
            await self._check(value)

    async def _until_ended(self, pmo: Any, handle: Any) -> None:
        """Tick until the task has ended; after the first worker is struck, start its successor."""
        takes_over = False

        async def ended() -> bool:
            nonlocal takes_over
            await asyncio.sleep(TICK_SECONDS)
            await pmo.run_once()
            task = await handle.task()
            await self.fault.look(task)
            if self.fault.is_struck and not takes_over:
                takes_over = True
                self.worker(at=0)
            if task.reason == "effect_unknown":
                await self._look_and_settle(pmo)
            return bool(task.is_ended)

        await eventually(ended, f"the task ends ({self.fault})")

    async def _look_and_settle(self, pmo: Any) -> None:
        """Settle unknown effects as a person does: wait until the woken worker has noticed, look, and say."""
        store, namespace = self.world.store, self.world.namespace

        async def no_lease_has_lapsed() -> bool:
            await asyncio.sleep(TICK_SECONDS)
            await pmo.run_once()  # a session that its worker has given up is ended by the supervisor
            now = await store.now()
            return all(session.lease_until > now for session in await store.open_sessions(namespace))

        await eventually(no_lease_has_lapsed, "the woken worker has noticed")
        for effect in await store.effects_page(namespace, status="unknown", task_id=self.task_id):
            name = effect.key.partition(":")[0]
            verdict: Verdict = "done" if self.sink.has(name, effect.key) else "not_done"
            value = f"{name} is done" if verdict == "done" else None
            with contextlib.suppress(WrongStatus):  # the woken worker is still at it: look again later
                await self.world.client.settle_effect(effect.key, verdict, by="ada", result=value)

    async def _answer(self) -> None:
        """Answer tool calls and approvals from outside."""
        store, namespace, client = self.world.store, self.world.namespace, self.world.client
        while True:
            for call in await store.open_calls(namespace, task_id=self.task_id):
                with contextlib.suppress(EndwellError):
                    await client.answer(call.tool_call_id, "it is 42")
            for approval in await store.approvals_page(namespace, task_id=self.task_id):
                with contextlib.suppress(EndwellError):
                    await client.approve(approval.id, by="ada")
            await asyncio.sleep(0.05)

    async def _end_all(self) -> None:
        for child in self._children:
            child.kill()
            await asyncio.get_running_loop().run_in_executor(None, child.wait, PATIENCE_SECONDS)
            child.close()
        self._children.clear()

    async def _check(self, value: Any) -> None:
        """Check that the result is right, the record whole, no effect done twice, no step recorded twice."""
        store, namespace = self.world.store, self.world.namespace
        assert self.fault.may_differ or value == EXPECTED, value
        report = await verify(store, [namespace])
        assert report["ok"], report
        effects = await store.effects_page(namespace)
        assert {effect.status for effect in effects} == {"done"}
        history = [event.type for event in await store.events_of_task(namespace, self.task_id)]
        assert history.count("task.succeeded") == 1
        calls = Counter(self.sink.calls())
        assert {name: calls[name] for name in EFFECTS} == dict.fromkeys(EFFECTS, 1)
        again = sum(calls[name] - 1 for name in (*STEPS, "helper"))
        assert 0 <= again <= self.fault.steps_again + await self._count_other_losses(), calls

    async def _count_other_losses(self) -> int:
        """Count reclaims from workers that were not struck; each may cost a step.

        A busy machine can stop a healthy worker for longer than its lease.
        """
        store, namespace = self.world.store, self.world.namespace
        facts = [each.event.fact for each in await store.events_after(namespace, "", 1000)]
        losers = [fact.session_id for fact in facts if isinstance(fact, TaskReclaimed)]
        sessions = [await store.session(namespace, loser) for loser in losers]
        is_victim_among_them = any(session and session.pid == self._victim for session in sessions)
        return len(losers) - is_victim_among_them


class Quiet(Fault):
    """No fault: a trap that is never reached."""

    async def begin(self, run: Any, stack: contextlib.AsyncExitStack) -> None:
        run.worker(at=1000, where="before", how="kill")
