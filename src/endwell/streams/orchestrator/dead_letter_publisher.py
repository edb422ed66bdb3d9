"""Publishes the dead letters of tasks: each open one is on the stream once, closed ones are removed.

The index of what was published lies beside the stream and is written with it. A server that lost everything,
or the stream alone, gets every open dead letter again. A server that lost the index alone gets none twice:
the index is made again from the stream.
"""

from __future__ import annotations

from endwell.model.moments import SECOND, moment
from endwell.store.contract import Store
from endwell.store.reads.side_rows import DeadLetter
from endwell.streams.dead_letter_stream import DeadLetterStream
from endwell.streams.entries import dead_letter_entry

PAGE = 200
OVERLAP_SECONDS = 60
"""How far back each look begins before the last: a commit may become visible after a later one."""


class DeadLetterPublisher:
    """Brings the stream up to date with the store."""

    def __init__(self, store: Store, stream: DeadLetterStream, *, namespace: str) -> None:
        self._store = store
        self._stream = stream
        self._namespace = namespace

    async def run_once(self) -> int:
        """How many dead letters were published or removed."""
        now = await self._store.now()
        since = await self._stream.last_look()
        count, after = 0, ""
        while page := await self._store.letters_changed(self._namespace, since, after, PAGE):
            ids = await self._stream.ids_of([letter.task_id for letter in page])
            if ids is None:
                return count  # the index was lost just now: the next look makes it again
            for letter, letter_id in zip(page, ids, strict=True):
                count += await self._update(letter, letter_id)
            since, after = page[-1].changed_at, page[-1].task_id
        await self._stream.record_look(now - OVERLAP_SECONDS * SECOND)
        return count

    async def _update(self, letter: DeadLetter, letter_id: bytes | None) -> bool:
        if letter.status == "open" and letter_id is None:
            return await self._publish(letter)
        if letter.status != "open" and letter_id is not None:
            await self._stream.remove(letter.task_id, letter_id.decode())
            return True
        return False

    async def _publish(self, letter: DeadLetter) -> bool:
        task = await self._store.task(self._namespace, letter.task_id)
        if task.dead_letter != "open":
            return False  # it was closed since this look began
        payload = (await self._store.card(self._namespace, task.payload_card)).content.decode()
        entry = dead_letter_entry(
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
        return await self._stream.publish(letter.task_id, entry)
