"""A snapshot of the record: a transaction that sees only what was committed when it began."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from endwell.model.card import Card
from endwell.model.message import Message
from endwell.store.log import LAST_POSITION, Event, Logged, position_of
from endwell.store.postgres import errors
from endwell.store.postgres.connection import STEADY, connect
from endwell.store.postgres.statements import QUERIES


class PostgresSnapshot:
    """Asks one connection in a transaction at the isolation level REPEATABLE READ."""

    def __init__(self, connection: Any, url: str) -> None:
        self._connection = connection
        self._url = url

    async def events_after(self, namespace: str, cursor: str, limit: int) -> list[Logged]:
        """Every committed event after a cursor; what commits later is not part of the snapshot."""
        page = (namespace, position_of(cursor), LAST_POSITION, limit)
        return [logged_event(row) for row in await self._rows("events_after", *page)]

    async def cards_between(self, namespace: str, first: str, last: str) -> list[Card]:
        return [Card(*row) for row in await self._rows("cards_between", namespace, first, last)]

    async def messages_page(self, namespace: str, after: str, limit: int) -> list[Message]:
        return [Message(*row) for row in await self._rows("messages_page", namespace, after, limit)]

    async def _rows(self, name: str, *parameters: Any) -> Sequence[Any]:
        try:
            rows: Sequence[Any] = await self._connection.fetch(QUERIES[name], *parameters)
        except Exception as error:
            raise errors.meaning_of(error, self._url) from error
        return rows


@asynccontextmanager
async def open_snapshot(url: str) -> AsyncIterator[PostgresSnapshot]:
    """Open a snapshot on a connection of its own."""
    connection: Any = None
    try:
        try:
            connection = await connect(url, STEADY)
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        except Exception as error:
            raise errors.meaning_of(error, url) from error
        yield PostgresSnapshot(connection, url)
    finally:
        if connection is not None:
            connection.terminate()


def logged_event(row: Sequence[Any]) -> Logged:
    """The event in a row of the query `events_after`."""
    return Logged(row[0], row[1], Event(*row[2:-1]), row[-1] or b"")
