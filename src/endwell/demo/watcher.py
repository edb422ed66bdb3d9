"""What the demo sees while it runs: asked of the store, which is also how victims are chosen."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import msgspec

from endwell.demo.crew import Crew
from endwell.errors import StoreError
from endwell.model import facts as f
from endwell.runtime.base import Runtime
from endwell.runtime.processes import host_name
from endwell.store.contract import Store
from endwell.store.log import Event

LOOK_SECONDS = 0.15
PAGE = 1000


class Holding(msgspec.Struct, frozen=True):
    """A worker's session, and how many tasks it holds."""

    session_id: str
    tasks: int


class Person(msgspec.Struct, frozen=True):
    """One process as it is shown."""

    name: str
    pid: int
    state: str
    tasks: int


class DemoView(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of the run."""

    total: int
    submitted: int
    counts: dict[str, int]
    people: list[Person]
    events: Counter[str]


class Show(Protocol):
    """Where the run is shown."""

    def say(self, text: str) -> None: ...

    def update(self, view: DemoView) -> None: ...


async def holdings(store: Store, namespace: str) -> dict[int, Holding]:
    """By process id: what each worker of this machine holds at this moment. A later session wins."""
    load = await store.load_of_sessions(namespace)
    mine = [s for s in await store.open_sessions(namespace) if s.kind == "worker" and s.host == host_name()]
    return {session.pid: Holding(session.id, load.get(session.id, 0)) for session in mine}


class Watcher:
    """Follows the log and the sessions; `run` does so until it is cancelled."""

    def __init__(
        self, runtime: Runtime, store: Store, namespace: str, crew: Crew, show: Show, *, total: int
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._namespace = namespace
        self._crew = crew
        self._show = show
        self._total = total
        self._cursor = ""
        self._names: dict[str, str] = {}
        self.events: Counter[str] = Counter()
        self.reclaimed_from: Counter[str] = Counter()

    async def run(self) -> None:
        """Look again and again; a store that is away for a moment is looked at later."""
        while True:
            try:
                await self.look()
            except StoreError as error:
                self._show.say(f"the store did not answer: {error.message}")
            await self._runtime.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """One look at everything."""
        held = await holdings(self._store, self._namespace)
        for member in self._crew.members.values():
            if member.pid in held:
                self._names[held[member.pid].session_id] = member.name
        await self._follow()
        counts = await self._store.counts(self._namespace)
        self._show.update(
            DemoView(
                total=self._total,
                submitted=sum(counts.values()),
                counts=counts,
                people=self._people(held),
                events=self.events,
            )
        )

    def _people(self, held: dict[int, Holding]) -> list[Person]:
        return [
            Person(
                m.name, m.pid, "alive" if m.is_ready else m.state, held[m.pid].tasks if m.pid in held else 0
            )
            for m in self._crew.members.values()
        ]

    async def _follow(self) -> None:
        taken: Counter[str] = Counter()
        refused = 0
        while page := await self._store.events_after(self._namespace, self._cursor, PAGE):
            self._cursor = page[-1].cursor
            for logged in page:
                refused += logged.event.type == "write.refused"
                taken[self._note(logged.event)] += 1
        for session_id, count in taken.items():
            if session_id:
                self._show.say(f"supervisor took {count} from {self._names.get(session_id, session_id)}")
        if refused:
            self._show.say(f"store refused {refused} stale write{'s' if refused > 1 else ''}")

    def _note(self, event: Event) -> str:
        """Count the event; the session that a task was taken from, if it was."""
        self.events[event.type] += 1
        if event.type != "task.reclaimed" or not isinstance(event.fact, f.TaskReclaimed):
            return ""
        self.reclaimed_from[event.fact.session_id] += 1
        return event.fact.session_id
