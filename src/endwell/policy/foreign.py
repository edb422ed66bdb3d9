"""Which agents foreign workers may serve, and how many of them the store registers for them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from endwell.errors import BadInput
from endwell.model.commands import AgentSpec
from endwell.model.moments import SECOND
from endwell.model.names import agent_name

ANY: Final = "*"
"""Among the agents that foreign workers may serve: every agent that none of our own workers registered."""
MAX_AGENTS: Final = 200
"""Agents that foreign workers may register in one namespace: the names come from anyone who reaches Redis."""
MAX_WORKERS: Final = 1000
"""Foreign workers that may have a session at once, for the same reason."""
REGISTERED_FOR: Final = 86_400 * SECOND
"""How long a registration outlives the last worker that served the agent."""


def plan_registration(
    known: Sequence[AgentSpec], wanted: Sequence[str], allowed: Sequence[str], now: int
) -> tuple[AgentSpec, ...]:
    """The rows to write for the agents that live foreign workers serve; none while all rows are fresh."""
    rows = {spec.name: spec for spec in known}
    foreign = sum(spec.foreign_until is not None and spec.foreign_until > now for spec in known)
    planned: list[AgentSpec] = []
    for name in select_served(known, wanted, allowed):
        row = rows.get(name)
        if row is None or _has_expired(row, now):
            if foreign >= MAX_AGENTS:
                continue
            foreign += 1
        elif row.foreign_until is None or row.foreign_until > now + REGISTERED_FOR // 2:
            continue
        planned.append(AgentSpec(name=name, foreign_until=now + REGISTERED_FOR))
    return tuple(planned)


def _has_expired(row: AgentSpec, now: int) -> bool:
    return row.foreign_until is not None and row.foreign_until <= now


def select_served(
    known: Sequence[AgentSpec], wanted: Sequence[str], allowed: Sequence[str]
) -> tuple[str, ...]:
    """The agents among `wanted` that foreign workers may serve, each once, at most `MAX_AGENTS`."""
    own = {spec.name for spec in known if spec.foreign_until is None}
    may = [
        name
        for name in dict.fromkeys(wanted)
        if _is_agent_name(name) and (name in allowed or (ANY in allowed and name not in own))
    ]
    return tuple(may[:MAX_AGENTS])


def _is_agent_name(name: str) -> bool:
    try:
        agent_name(name)
    except BadInput:
        return False
    return True
