"""Follows the store while the demo runs; the screens show it, and faults choose their victims by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol

from endwell.demo.crew import Crew
from endwell.errors import StoreError
from endwell.model import facts as f
from endwell.runtime.base import Runtime
from endwell.runtime.processes import host_name
from endwell.store.contract import Store
from endwell.store.log import Event

LOOK_SECONDS = 0.15
PAGE = 1000


class Holding(NamedTuple):
    """A worker's session, and how many tasks it holds."""

    session_id: str
    tasks: int


class Show(Protocol):
    """A screen."""

    def add_line(self, text: str) -> None: ...

    def update(self, watcher: Watcher) -> None: ...


class Watcher:
    """What the store showed at the last look."""

    def __init__(self, runtime: Runtime, store: Store, namespace: str, crew: Crew, show: Show) -> None:
        self._runtime = runtime
        self._store = store
        self._namespace = namespace
        self._show = show
        self._cursor = ""
        self._names: dict[str, str] = {}
        self.crew = crew
        self.held: dict[int, Holding] = {}
        self.counts: dict[str, int] = {}
        self.events: Counter[str] = Counter()
        self.reclaimed_from: Counter[str] = Counter()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await self.look_once()
            except StoreError as error:
                self._show.add_line(f"the store did not answer: {error.message}")
            await self._runtime.sleep(LOOK_SECONDS)

    async def look_once(self) -> None:
        """Look once at sessions, log and counts."""
        self.held = await self.read_holdings()
        for member in self.crew.members.values():
            if member.pid in self.held:
                self._names[self.held[member.pid].session_id] = member.name
        await self._follow_log()
        self.counts = await self._store.counts_by_status(self._namespace)
        self._show.update(self)

    async def read_holdings(self) -> dict[int, Holding]:
        """The tasks that each worker of this machine holds now, by process id. A later session wins."""
        load = await self._store.load_of_sessions(self._namespace)
        return {
            session.pid: Holding(session.id, load.get(session.id, 0))
            for session in await self._store.open_sessions(self._namespace)
            if session.kind == "worker" and session.host == host_name()
        }

    def has_reclaimed_from(self, session_id: str) -> Callable[[], bool]:
        """A question: were tasks reclaimed from this session?"""
        return lambda: self.reclaimed_from[session_id] > 0

    async def _follow_log(self) -> None:
        reclaimed, refused = self.reclaimed_from.copy(), self.events["write.refused"]
        while page := await self._store.events_after(self._namespace, self._cursor, PAGE):
            self._cursor = page[-1].cursor
            for logged in page:
                self._note_event(logged.event)
        for session_id, count in (self.reclaimed_from - reclaimed).items():
            self._show.add_line(f"supervisor took {count} from {self._names.get(session_id, session_id)}")
        if new := self.events["write.refused"] - refused:
            self._show.add_line(f"store refused {new} stale write{'s' if new > 1 else ''}")

    def _note_event(self, event: Event) -> None:
        self.events[event.type] += 1
        if event.type == "task.reclaimed" and isinstance(event.fact, f.TaskReclaimed):
            self.reclaimed_from[event.fact.session_id] += 1
