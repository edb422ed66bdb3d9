"""The agents and tools that a turn can call: those of this process, and those that workers registered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec.structs import replace

from endwell.model.commands import AgentSpec, RegisterAgents
from endwell.model.typed import Shape
from endwell.policy.approval import (
    AgentOptions,
    Guard,
    guard_for,
    options_of,
    packed_guard,
    packed_options,
    resolve_options,
)
from endwell.settings import ApprovalSettings as ApprovalSettings
from endwell.store.actor import Actor


class SpecStore(Protocol):
    """Where registered agents are looked up."""

    async def agent(self, namespace: str, name: str) -> AgentSpec | None: ...

    async def agents(self, namespace: str) -> list[AgentSpec]: ...


class Callee(Protocol):
    """What a call needs to know of an agent or tool of this process."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> AgentOptions: ...

    @property
    def result(self) -> Shape: ...

    def spec(self) -> AgentSpec: ...


class Directory:
    """One per worker. The store is asked only about agents that this process does not have."""

    def __init__(
        self, store: SpecStore, namespace: str, agents: Mapping[str, Callee], approval: ApprovalSettings
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._agents = agents
        self.approval = approval
        self._specs: dict[str, AgentSpec] = {}

    def local_agent(self, name: str) -> Callee | None:
        """The agent or tool itself, if this process has it."""
        return self._agents.get(name)

    async def spec_of(self, name: str) -> AgentSpec | None:
        """What an agent was registered with; None when no worker has registered it."""
        local = self._agents.get(name)
        if local is None:
            return await self._store.agent(self._namespace, name)
        if name not in self._specs:
            self._specs[name] = local.spec()
        return self._specs[name]

    async def agent_names(self) -> list[str]:
        return [spec.name for spec in await self._store.agents(self._namespace)]

    def registration_command(self, served: Iterable[Callee], actor: Actor, session_id: str) -> RegisterAgents:
        """What a worker registers for its agents, with approval rules as its settings resolve them."""
        specs, rules = list[AgentSpec](), list[tuple[str, str]]()
        for agent in served:
            options = resolve_options(agent.options, self.approval)
            specs.append(replace(agent.spec(), options=packed_options(options)))
            if options.approval is not None:
                rules.append((agent.name, packed_guard(options.approval)))
        return actor.command(RegisterAgents, agents=tuple(specs), session_id=session_id, rules=tuple(rules))

    def approval_guard(self, spec: AgentSpec) -> Guard | None:
        """Who must agree before a call of this agent starts."""
        return guard_for(options_of(spec.options), self.approval)
