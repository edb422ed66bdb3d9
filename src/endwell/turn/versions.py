"""Whether a task may go on under the code that this worker has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from endwell.errors import VersionMismatch
from endwell.model.commands import ClaimNext
from endwell.model.inside import inside_of
from endwell.model.session import versions_of
from endwell.model.task import Task
from endwell.store.contract import Store
from endwell.turn.agents import Agent

MOST_PASSED_OVER: Final = 1000
"""Tasks of other versions that a claim looks past; behind more of them it waits for their workers."""


def refuse_other_version(agent: Agent, task: Task) -> None:
    """Steps are found by identity under any version, unless the agent wants none of another's."""
    recorded = inside_of(task).version  # ours, as long as no step is recorded
    if agent.on_version_change == "refuse" and recorded != agent.version:
        raise VersionMismatch(
            f"version {recorded or 'without a name'} of {agent.name} recorded the steps of task "
            f"{task.id}, and this is version {agent.version or 'without a name'}",
            hint="serve it with the old version, or say on_version_change='continue'",
            task_id=task.id,
        )


class OtherVersions:
    """Asks which versions of an agent other live workers serve, where the agent refuses to change."""

    def __init__(self, store: Store, namespace: str, agents: Mapping[str, Agent]) -> None:
        self._store = store
        self._namespace = namespace
        refusing = {name: agent for name, agent in agents.items() if agent.on_version_change == "refuse"}
        self._passed_over = 0
        self._own = {name: agent.version or "" for name, agent in refusing.items()}

    async def look_past(self, claim: ClaimNext) -> ClaimNext:
        """The claim, with the versions whose tasks it leaves to others, looking past as many as last time."""
        others = await self.served_elsewhere()
        return replace(claim, served_elsewhere=others, passed_over=self._passed_over) if others else claim

    def has_passed_more(self, passed_over: int) -> bool:
        """Whether more tasks of other versions stood before ours than the claim looked past."""
        before, self._passed_over = self._passed_over, min(passed_over, MOST_PASSED_OVER)
        return self._passed_over > before

    async def served_elsewhere(self) -> dict[str, tuple[str, ...]]:
        """By agent; a task that one of these versions has begun is theirs. Asked before each claim.

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
