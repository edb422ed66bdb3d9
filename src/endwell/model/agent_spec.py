"""Agents and tools as the store knows them."""

from __future__ import annotations

import msgspec

from endwell.model.base import Command


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows about an agent or tool, so that any process may submit to it.

    `foreign_until`: when the row expires, if only foreign workers have registered the agent.
    """

    name: str
    version: str | None = None
    concurrency: int | None = None
    retry_policy: str | None = None
    deadline: int | None = None
    payload_schema: str | None = None
    kind: str = "agent"
    options: str | None = None
    foreign_until: int | None = None


class RegisterAgents(Command, frozen=True, kw_only=True):
    """Register the agents that a starting worker serves, and the approval rules they start under.

    `rules` are pairs of agent and resolved rule; they apply while the session lives, and after it until
    another worker registers the agent. `drops_expired`: delete rows that have expired.
    """

    agents: tuple[AgentSpec, ...]
    session_id: str = ""
    rules: tuple[tuple[str, str], ...] = ()
    drops_expired: bool = False
