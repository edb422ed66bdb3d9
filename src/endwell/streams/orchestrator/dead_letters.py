"""Dead letters on their stream: what the store says is dead is put there once, and removed when closed.

The mark of what was put lives beside the stream and is written with it. A server that lost everything, or the
stream alone, gets every open dead letter again; one that lost the marks alone gets none twice, for the marks
are made again from what lies on the stream.
"""

from __future__ import annotations

from endwell.model.moments import moment
from endwell.policy.limits import SECOND
from endwell.redis_client import Word
from endwell.store.contract import Store
from endwell.store.side_rows import DeadLetter
from endwell.streams.commands import KEPT_LETTERS, StreamOrchestrator
from endwell.streams.entries import dlq_entry, is_whole
from endwell.streams.protocol import ALL_THERE
from endwell.streams.scripts import put_letter

PAGE = 200
OVERLAP_SECONDS = 60
"""How far back each look begins before the last: a commit may become visible after a later one."""
UNPLACED = "?"
"""The mark of a letter that an earlier version put and whose place it did not note."""


class StreamDeadLetters:
    """`run_once()` brings the stream up to date."""

    def __init__(self, store: Store, stream: StreamOrchestrator, *, namespace: str) -> None:
        self._store = store
        self._stream = stream
        self._namespace = namespace

    async def run_once(self) -> int:
        """How many letters were put or removed."""
        names, connection = self._stream.names, self._stream.connection
        now = await self._store.now()
        since = await self._since()
        count, after = 0, ""
        while page := await self._store.letters_changed(self._namespace, since, after, PAGE):
            asked = (ALL_THERE, *(letter.task_id for letter in page))
            all_there, *known = await connection.ask("HMGET", names.letters, *asked)
            if all_there is None:
                return count  # the marks were dropped meanwhile: the next look makes them again
            for letter, place in zip(page, known, strict=True):
                count += await self._settle(letter, place)
            since, after = page[-1].changed_at, page[-1].task_id
        await connection.ask("SET", names.letters_cursor, now - OVERLAP_SECONDS * SECOND)
        return count

    async def _since(self) -> int:
        """From when on to look: from the beginning where letters were evicted, or their marks."""
        names, connection = self._stream.names, self._stream.connection
        looks: list[tuple[Word, ...]] = [("XLEN", names.dlq), ("HLEN", names.letters)]
        looks += [("HMGET", names.letters, ALL_THERE), ("GET", names.letters_cursor)]
        letters, marks, (all_there,), since = await connection.ask_all(looks)
        if all_there is not None and letters >= min(marks - 1, KEPT_LETTERS):
            return int(since) if since is not None and is_whole(since.decode(errors="replace")) else 0
        again: list[tuple[Word, ...]] = [("DEL", names.letters, names.letters_cursor)]
        for task_id, place in (await self._places()).items():
            again.append(("HSET", names.letters, task_id, place))
        again.append(("HSET", names.letters, ALL_THERE, ""))
        await connection.ask_all(again, atomic=True)
        return 0

    async def _settle(self, letter: DeadLetter, place: bytes | None) -> bool:
        if letter.status == "open" and place is None:
            return await self._put(letter)
        if letter.status != "open" and place is not None:
            await self._remove(letter.task_id, place.decode())
            return True
        return False

    async def _put(self, letter: DeadLetter) -> bool:
        task = await self._store.task(self._namespace, letter.task_id)
        if task.dead_letter != "open":
            return False  # it was closed since this look began
        payload = (await self._store.card(self._namespace, task.payload_card)).content.decode()
        fields = dlq_entry(
            {
                "task_id": letter.task_id,
                "tool_name": letter.agent,
                "payload": payload,
                "error": task.error or "",
                "retry_count": letter.retry_count,
                "failed_at": moment(letter.failed_at),
                "reason": letter.reason,
                "fingerprint": letter.fingerprint,
            }
        )
        return await put_letter(self._stream.connection, self._stream.names, letter.task_id, fields)

    async def _remove(self, task_id: str, place: str) -> None:
        names, connection = self._stream.names, self._stream.connection
        ids = [place] if place != UNPLACED else await self._find(task_id)
        removing = [("XDEL", names.dlq, *ids)] if ids else []
        await connection.ask_all([*removing, ("HDEL", names.letters, task_id)], atomic=True)

    async def _find(self, task_id: str) -> list[str]:
        """Where a letter is of which only that is known that it was put."""
        place = (await self._places()).get(task_id.encode())
        return [] if place is None else [place.decode()]

    async def _places(self) -> dict[bytes, bytes]:
        """The letters of tasks that are on the stream; those of unreadable entries name their entry."""
        places: dict[bytes, bytes] = {}
        for message_id, raw in await self._stream.connection.ask("XRANGE", self._stream.names.dlq, "-", "+"):
            said = dict(zip(raw[::2], raw[1::2], strict=True))
            if not said.get(b"message_id"):
                places[said.get(b"task_id", b"")] = message_id
        return places
