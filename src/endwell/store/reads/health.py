"""Questions about the installation: agents and sessions, counts, and the state of the database itself."""

from __future__ import annotations

from typing import Any

import msgspec

from endwell.model.agent_spec import AgentSpec
from endwell.model.cursor import Cursor
from endwell.model.session import Session
from endwell.store.queries import NamedQueries


class Conservation(msgspec.Struct, frozen=True):
    """The counters of the commits beside a full count, at one moment."""

    accepted: int
    ended: int
    tasks: int
    ended_tasks: int

    @property
    def is_conserved(self) -> bool:
        """Whether accepted = ended + live, and the counters agree with the rows."""
        return (self.accepted, self.ended) == (self.tasks, self.ended_tasks)


class HealthReads(NamedQueries):
    """Agents, sessions, cursors, counts, and the database."""

    async def agent(self, namespace: str, name: str) -> AgentSpec | None:
        return await self._read_first(_agent_spec, "agent", namespace, name)

    async def agents(self, namespace: str) -> list[AgentSpec]:
        return await self._read_all(_agent_spec, "agents", namespace)

    async def session(self, namespace: str, session_id: str) -> Session | None:
        return await self._read_first(Session, "session", namespace, session_id)

    async def open_sessions(self, namespace: str) -> list[Session]:
        """Every session that has not ended."""
        return await self._read_all(Session, "open_sessions", namespace)

    async def lapsed_sessions(self, namespace: str, now: int, limit: int) -> list[str]:
        """Sessions whose lease has lapsed and that hold nothing any more."""
        return await self._read_column("lapsed_sessions", namespace, now, limit)

    async def load_of_sessions(self, namespace: str) -> dict[str, int]:
        """How many tasks each session holds."""
        return await self._read_pairs("load_of_sessions", namespace)

    async def cursor(self, namespace: str, name: str) -> Cursor | None:
        """How far a follower has read the log."""
        return await self._read_first(Cursor, "cursor", namespace, name)

    async def cursors_named(self, namespace: str, prefix: str) -> list[Cursor]:
        """Cursors whose names begin like this, in the order in which they were last moved."""
        return await self._read_all(Cursor, "cursors_named", namespace, prefix)

    async def last_tick(self, namespace: str) -> int | None:
        """When any PMO last completed a tick."""
        return await self._read_value("last_tick", namespace)  # type: ignore[no-any-return]

    async def counts_by_status(self, namespace: str) -> dict[str, int]:
        """How many tasks there are in each status."""
        return await self._read_pairs("counts", namespace)

    async def waiting_by_agent(self, namespace: str, now: int) -> dict[str, int]:
        """How many tasks of each agent wait for a worker."""
        return await self._read_pairs("waiting_by_agent", namespace, now)

    async def task_tallies(self, namespace: str) -> tuple[int, int]:
        """How many tasks were accepted and how many ended, as the commits counted them."""
        ((accepted, ended),) = await self._rows("tallies", namespace)
        return int(accepted), int(ended)

    async def count_conservation(self, namespace: str) -> Conservation:
        """The counters beside a full count, both of one moment."""
        (row,) = await self._rows("conservation", namespace)
        return Conservation(*(int(value) for value in row))

    async def latest_moment(self, namespace: str) -> int | None:
        """The latest time that the record knows."""
        return await self._read_value("latest_moment", namespace)  # type: ignore[no-any-return]

    async def known_namespaces(self) -> list[str]:
        """Every namespace that tasks or events know."""
        return await self._read_column("namespaces")

    async def schema_objects(self) -> list[str]:
        """The names of the tables and indexes."""
        return await self._read_column("schema_objects")

    async def integrity_faults(self) -> list[str]:
        """The faults that the database finds in its own file."""
        return [str(fault) for fault in await self._read_column("integrity") if fault != "ok"]

    async def idle_transactions(self, seconds: float) -> list[tuple[int, str, int]]:
        """Processes with a transaction open and idle for longer: process id, name, seconds; oldest first."""
        return [(row[0], row[1], row[2]) for row in await self._rows("idle_transactions", seconds)]


def _agent_spec(*row: Any) -> AgentSpec:
    return AgentSpec(**dict(zip(AgentSpec.__struct_fields__, row, strict=True)))
