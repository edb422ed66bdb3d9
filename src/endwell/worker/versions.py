"""Which tasks a claim leaves to workers that serve another version of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from endwell.model.session import versions_of
from endwell.store.contract import Store
from endwell.turn.agents import Agent

MOST_PASSED_OVER: Final = 1000
"""Tasks of other versions that a claim looks past; behind more of them it waits for their workers."""


class OtherVersions:
    """The versions that other live workers serve, of agents that refuse to change version."""

    def __init__(self, store: Store, namespace: str, agents: Mapping[str, Agent]) -> None:
        self._store = store
        self._namespace = namespace
        self._own = {
            name: agent.version or "" for name, agent in agents.items() if agent.on_version_change == "refuse"
        }
        self.passed_over = 0
        """How many tasks of other versions the last claim found before ours."""

    def has_passed_more(self, passed_over: int) -> bool:
        """Whether a claim found more tasks of other versions before ours than it looked past."""
        before, self.passed_over = self.passed_over, min(passed_over, MOST_PASSED_OVER)
        return self.passed_over > before

    async def served_elsewhere(self) -> dict[str, tuple[str, ...]]:
        """The other versions by agent, asked for before each claim: tasks they have begun are theirs.

        A session whose lease lapsed counts until it is closed: after an outage of the store every lease has
        lapsed, and its worker may be back a moment later. Supervisors wait for it before they close sessions.
        """
        if not self._own:
            return {}
        found: dict[str, set[str]] = {}
        for session in await self._store.open_sessions(self._namespace):
            for agent, version in versions_of(session).items():
                if agent in self._own and version != self._own[agent]:
                    found.setdefault(agent, set()).add(version)
        return {agent: tuple(sorted(versions)) for agent, versions in found.items()}
