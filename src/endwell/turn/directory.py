"""Whom a turn can call: the agents and tools of this process, and those that others have registered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from endwell.model.commands import AgentSpec, RegisterAgents
from endwell.policy.approval import Guard, guard_for, options_of, packed_guard, packed_options, resolved
from endwell.settings import ApprovalSettings as ApprovalSettings
from endwell.turn.agents import Agent
from endwell.turn.turn_store import TurnStore


class Directory:
    """One per worker. What this process knows itself is never asked of the store."""

    def __init__(
        self, store: TurnStore, namespace: str, agents: Mapping[str, Agent], approval: ApprovalSettings
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._agents = agents
        self._approval = approval
        self._specs: dict[str, AgentSpec] = {}

    def local(self, name: str) -> Agent | None:
        """The agent or tool itself, if this process has it."""
        return self._agents.get(name)

    async def spec(self, name: str) -> AgentSpec | None:
        """What is known of it; None when nobody has registered it."""
        local = self._agents.get(name)
        if local is None:
            return await self._store.agent(self._namespace, name)
        if name not in self._specs:
            self._specs[name] = local.spec()
        return self._specs[name]

    async def names(self) -> list[str]:
        """Everybody who is registered."""
        return [spec.name for spec in await self._store.agents(self._namespace)]

    def registering(
        self, served: Iterable[Agent], command_id: str, actor: str, session_id: str
    ) -> RegisterAgents:
        """What a worker tells the store of its agents, with approval rules as its settings resolve them."""
        specs, rules = list[AgentSpec](), list[tuple[str, str]]()
        for agent in served:
            options = resolved(agent.options, self._approval)
            specs.append(replace(agent.spec(), options=packed_options(options)))
            if options.approval is not None:
                rules.append((agent.name, packed_guard(options.approval)))
        return RegisterAgents(
            command_id=command_id,
            namespace=self._namespace,
            actor=actor,
            agents=tuple(specs),
            session_id=session_id,
            rules=tuple(rules),
        )

    def guard(self, spec: AgentSpec) -> Guard | None:
        """Who must agree before a call of it starts."""
        return guard_for(options_of(spec.options), self._approval)

    @property
    def approval(self) -> ApprovalSettings:
        """What the settings say of approvals."""
        return self._approval
