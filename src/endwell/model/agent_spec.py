"""An agent or tool as the store knows it."""

from __future__ import annotations

import msgspec


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows about an agent, so that anybody may submit to it."""

    name: str
    version: str | None = None
    concurrency: int | None = None
    retry_policy: str | None = None
    deadline: int | None = None
    payload_schema: str | None = None
    kind: str = "agent"
    options: str | None = None
    foreign_until: int | None = None
    """When the row expires, if only foreign workers have registered the agent."""
