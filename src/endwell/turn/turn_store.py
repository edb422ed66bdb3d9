"""What a turn needs of the store: the whole of it inside a worker, a worker's answers inside a child."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from endwell.model.card import Card
from endwell.model.commands import AgentSpec, Command
from endwell.model.effect import Effect
from endwell.model.session import Session
from endwell.store.rows import Reply


class TurnStore(Protocol):
    """The methods of `Store` that a bench, its verbs and its directory call; `remote.py` has each of them."""

    async def commit(self, commands: Sequence[Command]) -> list[Reply]: ...

    async def now(self) -> int: ...

    async def card(self, namespace: str, card_id: str) -> Card: ...

    async def cards_between(self, namespace: str, first: str, last: str) -> list[Card]: ...

    async def cards_page(self, namespace: str, after: str, before: str, limit: int) -> list[Card]: ...

    async def cards_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Card]: ...

    async def effect(self, namespace: str, key: str) -> Effect | None: ...

    async def session(self, namespace: str, session_id: str) -> Session | None: ...

    async def agent(self, namespace: str, name: str) -> AgentSpec | None: ...

    async def agents(self, namespace: str) -> list[AgentSpec]: ...
