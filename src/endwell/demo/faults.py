"""The faults of the demo: SIGKILL and SIGSTOP, only ever on processes that are at work at that moment.

The store is asked who holds tasks right before each fault; afterwards the reader finds in the log
whether that was still so when the signal came. Nothing here counts itself as a success.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from endwell.demo.crew import Crew, CrewMember
from endwell.demo.journal import Frozen, Journal, KilledRecord
from endwell.demo.watcher import Holding, Show, Watcher, holdings
from endwell.errors import EndwellError
from endwell.runtime.base import Runtime
from endwell.runtime.ids import Ids
from endwell.store.contract import Store

PATIENCE_SECONDS = 15.0
"""How long to wait for a worker that holds work, or for a frozen one to be given up."""
REFUSAL_SECONDS = 1.0
"""How long a woken worker may take until it has tried to write, or has heard that it must not."""
PROBE_SECONDS = 0.5
LOOK_SECONDS = 0.01


class FaultNotPossible(EndwellError):
    """There was nobody to hit; the verdict will say what could not be shown."""


class Asleep(NamedTuple):
    """A worker that was frozen while it held work."""

    victim: CrewMember
    held: Holding
    at: int


class Faults:
    """Does harm, and writes down what it did."""

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        namespace: str,
        *,
        crew: Crew,
        journal: Journal,
        watcher: Watcher,
        show: Show,
        dice: Ids,
        start: Callable[[str, str], CrewMember],
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._namespace = namespace
        self._crew = crew
        self._journal = journal
        self._watcher = watcher
        self._show = show
        self._dice = dice
        self._start = start
        self._asleep: list[Asleep] = []

    async def kill_worker(self) -> None:
        """SIGKILL to a worker that holds tasks; a successor is started at once."""
        victim, held = await self._at_work()
        victim.kill()
        await self._note_kill(victim, held.session_id)
        self._show.say(f"kill -9 {victim.name} (pid {victim.pid}), which held {held.tasks}")
        self._start(victim.name, victim.role)

    async def kill_pmo(self) -> None:
        """SIGKILL to the supervisor; for a moment nobody watches, then a successor is started."""
        (victim,) = [member for member in self._crew.members.values() if member.role == "pmo"]
        victim.kill()
        await self._note_kill(victim, None)
        self._show.say(f"kill -9 {victim.name} (pid {victim.pid})")
        await self._runtime.sleep(0.3)
        self._start(victim.name, victim.role)

    async def _note_kill(self, victim: CrewMember, session_id: str | None) -> None:
        at = await self._store.now()
        self._journal.write(KilledRecord(victim.pid, victim.role, victim.name, session_id, at))

    async def freeze(self, write: Callable[[], Awaitable[None]], count: int = 1) -> None:
        """SIGSTOP to workers that hold tasks; `write` shows that the store is still free to be written.

        A process that stops in the middle of a write keeps the file locked, and everybody waits for it:
        that is SQLite, and not what is to be shown. It is woken at once and stopped at another moment.
        """
        for _ in range(20):
            victim, held = await self._at_work()
            victim.freeze()
            if await self._goes_on(write) and await self._still_holds(victim):
                self._asleep.append(Asleep(victim, held, await self._store.now()))
                self._show.say(f"froze {victim.name} (pid {victim.pid}), which held {held.tasks}")
                if len(self._asleep) >= count:
                    return
            else:
                victim.wake()
            await self._runtime.sleep(0.05)
        if not self._asleep:
            raise FaultNotPossible("no worker could be frozen while it held work and no lock")

    async def _goes_on(self, write: Callable[[], Awaitable[None]]) -> bool:
        writing = self._runtime.spawn(_awaited(write()), "endwell-demo-write")
        limit = self._runtime.clock.monotonic() + PROBE_SECONDS
        while not writing.done() and self._runtime.clock.monotonic() < limit:
            await self._runtime.sleep(LOOK_SECONDS)
        return writing.done()

    async def _still_holds(self, victim: CrewMember) -> bool:
        held = (await holdings(self._store, self._namespace)).get(victim.pid)
        return held is not None and held.tasks > 0

    async def wake(self) -> bool:
        """SIGCONT once the frozen workers' tasks were taken from them. Whether a stale write was refused."""
        asleep, self._asleep = self._asleep, []
        before = self._watcher.events["write.refused"]
        for each in asleep:
            await self._until(partial(self._is_robbed, each), PATIENCE_SECONDS)
            woken_at = await self._store.now()
            each.victim.wake()
            self._show.say(f"woke {each.victim.name} (pid {each.victim.pid}), which knows nothing of that")
            name, pid = each.victim.name, each.victim.pid
            self._journal.write(Frozen(pid, name, each.held.session_id, each.at, woken_at))
        return await self._until(lambda: self._watcher.events["write.refused"] > before, REFUSAL_SECONDS)

    def _is_robbed(self, each: Asleep) -> bool:
        return self._watcher.reclaimed_from[each.held.session_id] > 0

    async def _until(self, true: Callable[[], bool], seconds: float) -> bool:
        limit = self._runtime.clock.monotonic() + seconds
        while not true() and self._runtime.clock.monotonic() < limit:
            await self._runtime.sleep(LOOK_SECONDS)
        return true()

    async def _at_work(self) -> tuple[CrewMember, Holding]:
        """A worker that holds tasks at this moment, by the store's word."""
        limit = self._runtime.clock.monotonic() + PATIENCE_SECONDS
        while self._runtime.clock.monotonic() < limit:
            held = await holdings(self._store, self._namespace)
            busy = [m for m in self._crew.workers() if m.pid in held and held[m.pid].tasks > 0]
            if busy:
                chosen = busy[int(self._dice.fraction() * len(busy))]
                return chosen, held[chosen.pid]
            await self._runtime.sleep(LOOK_SECONDS)
        raise FaultNotPossible(f"no worker held work for {PATIENCE_SECONDS:g} s")


async def _awaited(thing: Awaitable[None]) -> None:
    await thing
