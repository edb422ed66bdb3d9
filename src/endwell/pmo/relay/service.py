"""The relay: read the log after the cursor, send the messages, then move the cursor; always in this order.

After a crash the next relay begins at the cursor and sends what was not noted again, with the same ids. One
relay at a time holds the cursor, by a lease; a relay whose lease lapsed cannot move it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from endwell.errors import EndwellError, Refused, StoreError
from endwell.model import commands as c
from endwell.model.cursor import Cursor
from endwell.model.moments import SECOND
from endwell.pmo.relay.messages import Outgoing, messages_of, turn_after
from endwell.pmo.relay.sink import Sink, SinkError
from endwell.runtime.base import Runtime
from endwell.settings import RelaySettings
from endwell.store.actor import Actor
from endwell.store.contract import Store
from endwell.store.log import Logged

log = logging.getLogger(__name__)

CURSOR: Final = "relay"
SKIP_PREFIX: Final = "relay.skip:"
"""A person's decision to leave out the messages of an event is a row of its own beside the cursor."""
MOST_TURNS: Final = 10_000
"""Tasks whose current turn is kept in memory; beyond it, turns are read from the log again."""
SHORTEST_REST_SECONDS: Final = 0.05


class Relay:
    """`run()` relays until `stop()`; tests call `run_once()`."""

    def __init__(
        self,
        store: Store,
        sink: Sink,
        runtime: Runtime,
        settings: RelaySettings,
        *,
        namespace: str,
        name: str,
    ) -> None:
        self._store = store
        self._sink = sink
        self._runtime = runtime
        self._settings = settings
        self._lease = settings.lease_seconds
        self._namespace = namespace
        self.holder = f"{name}.{runtime.ids.new()}"
        self._actor = Actor(store, runtime.ids, namespace=namespace, name=self.holder)
        self._cursor: Cursor | None = None
        self._good_until = 0.0
        self._turns: dict[str, str | None] = {}
        self._rung = asyncio.Event()
        self._stopped = asyncio.Event()
        self.sent = 0
        self.failures = 0

    def on_ring(self, topics: object) -> None:
        """Look at the log: there was a commit."""
        self._rung.set()

    async def run(self) -> None:
        """Relay what there is, rest, look again; a receiver that is away is tried again and again."""
        while not self._stopped.is_set():
            try:
                self._rung.clear()
                await self.run_once()
                await self._wait_for_ring()
                continue
            except SinkError:
                pass  # logged where it happened; another PMO may reach the receiver in the pause
            except (StoreError, Refused) as error:
                log.warning("the relay must wait: %s (%s)", error.message, error.code)
            except Exception:
                self.failures += 1
                log.exception("the relay failed")
            await self._runtime.wait(self._stopped, self._settings.pause_seconds)

    async def _wait_for_ring(self) -> None:
        """Wait for a ring. It comes a moment before its commit can be read everywhere."""
        if await self._runtime.wait(self._rung, self._settings.poll_seconds):
            await self._runtime.sleep(SHORTEST_REST_SECONDS)

    async def run_once(self) -> int:
        """Send everything after the cursor; return how many messages that were."""
        count = 0
        try:
            while not self._stopped.is_set() and (cursor := await self._hold_cursor()) is not None:
                page = await self._store.next_page(self._namespace, cursor.position, self._settings.batch)
                if not page:
                    break
                outgoing = await self._without_skipped(await self._make_messages(page))
                await self._send(outgoing)
                await self._move_cursor(page[-1].cursor)
                count += len(outgoing)
        except BaseException:
            self._turns.clear()  # the page will be read again from the turns before it
            raise
        self.sent += count
        return count

    async def _hold_cursor(self) -> Cursor | None:
        """The cursor, unless another relay holds it. Renews its lease well before it lapses."""
        now = self._runtime.clock.monotonic()
        if self._cursor is not None and now < self._good_until - self._lease / 2:
            return self._cursor
        known = await self._store.cursor(self._namespace, CURSOR)
        if known is not None and known.holder != self.holder and known.lease_until > await self._store.now():
            self._cursor = None
            return None
        if self._cursor is None:
            self._turns.clear()  # another relay may have moved the cursor
        (reply,) = await self._actor.commit([await self._take_cursor(is_first=known is None)])
        self._cursor, self._good_until = reply.cursor, now + self._lease
        return self._cursor

    async def _take_cursor(self, *, is_first: bool) -> c.TakeCursor:
        from_now_on = is_first and self._settings.start == "now"
        start = await self._store.log_end() if from_now_on else ""
        lease = int(self._lease * SECOND)
        return self._actor.command(c.TakeCursor, name=CURSOR, holder=self.holder, lease=lease, start=start)

    async def _make_messages(self, page: Sequence[Logged]) -> list[Outgoing]:
        ids = sorted({one.event.task_id for one in page})
        tasks = {task.id: task for task in await self._store.tasks_by_ids(self._namespace, ids)}
        if len(self._turns) > MOST_TURNS:
            self._turns.clear()
        first = {one.event.task_id: one.event.version for one in reversed(page)}
        for task_id in ids:
            if task_id not in self._turns and first[task_id] > 1:
                events = await self._store.events_of_task(self._namespace, task_id)
                before = (event.fact for event in events if event.version < first[task_id])
                self._turns[task_id] = turn_after(before)
        return list(messages_of(page, tasks, self._turns, self._settings.events))

    async def _without_skipped(self, outgoing: list[Outgoing]) -> list[Outgoing]:
        """Leave out what a person decided to skip; asked only while the receiver refuses something."""
        if self._cursor is None or self._cursor.trouble is None:
            return outgoing
        skipped = await skipped_events(self._store, self._namespace)
        for message in outgoing:
            if message.event_id in skipped:
                log.warning(
                    "message %s is left out: %s decided so", message.id, skipped[message.event_id].holder
                )
        return [message for message in outgoing if message.event_id not in skipped]

    async def _send(self, outgoing: Sequence[Outgoing]) -> None:
        """Send, and renew the cursor's lease for as long as that takes."""
        renewing = self._runtime.spawn(self._renew_lease(), "endwell-relay-lease")
        try:
            await self._send_with_retries(outgoing)
        finally:
            renewing.cancel()

    async def _renew_lease(self) -> None:
        while True:
            await self._runtime.sleep(self._lease / 3)
            sent = self._runtime.clock.monotonic()
            try:
                (reply,) = await self._actor.commit([await self._take_cursor(is_first=False)])
            except StoreError as error:
                log.warning("the relay's lease could not be renewed: %s", error.message)
                continue
            if reply.cursor is not None and self._cursor is not None:
                self._good_until = sent + self._lease

    async def _send_with_retries(self, outgoing: Sequence[Outgoing]) -> None:
        """A few tries with backoff; then the cursor is released, and no message is skipped."""
        for number in range(self._settings.tries):
            try:
                await self._sink.send(outgoing)
                return
            except SinkError as error:
                if error.at is not None:
                    error.message += f" (event {outgoing[error.at].event_id})"
                outgoing = outgoing[error.sent :]
                await self._note_failure(error, is_last=number + 1 == self._settings.tries)
            except Exception as error:
                trouble = SinkError(f"{self._sink.shown}: {str(error) or type(error).__name__}")
                await self._note_failure(trouble, is_last=number + 1 == self._settings.tries)
            longest = min(self._settings.retry_seconds * 2**number, self._settings.pause_seconds)
            await self._runtime.sleep(longest * (0.5 + self._actor.fraction() / 2))

    async def _note_failure(self, error: SinkError, *, is_last: bool) -> None:
        self.failures += 1
        log.warning("the relay cannot send: %s", error.message)
        if self._cursor is not None:
            await self._move_cursor(self._cursor.position, trouble=error.message, release=is_last)
        if is_last:
            raise error

    async def _move_cursor(self, position: str, *, trouble: str | None = None, release: bool = False) -> None:
        """Note how far the relay has come. Refused if another relay holds the cursor by now."""
        cursor = self._cursor
        if cursor is None:
            return
        sent = self._runtime.clock.monotonic()
        command = self._actor.command(
            c.MoveCursor,
            name=CURSOR,
            holder=self.holder,
            fence=cursor.fence,
            position=position,
            lease=0 if release else int(self._lease * SECOND),
            trouble=trouble,
        )
        (reply,) = await self._actor.commit([command])
        self._cursor = None if release else reply.cursor
        self._good_until = sent + self._lease
        if reply.refusal is not None:
            raise reply.refusal

    def stop(self) -> None:
        """`run` returns after the batch under way."""
        self._stopped.set()
        self._rung.set()

    async def close(self) -> None:
        """Release the cursor, so that another PMO can relay at once."""
        try:
            if self._cursor is not None:
                await self._move_cursor(self._cursor.position, release=True)
        except EndwellError as error:
            log.warning("the relay could not release its cursor; its lease will lapse: %s", error.message)
        finally:
            await self._sink.close()


async def relay_lag(store: Store, namespace: str, now: int) -> int | None:
    """Age of the oldest committed event that was not sent yet, in microseconds; None without a relay."""
    cursor = await store.cursor(namespace, CURSOR)
    if cursor is None:
        return None
    at = await store.oldest_after(namespace, cursor.position)
    return 0 if at is None else max(0, now - at)


async def skipped_events(store: Store, namespace: str) -> dict[str, Cursor]:
    """Events whose messages are left out; the row's `holder` decided so at `updated_at`."""
    found = await store.cursors_named(namespace, SKIP_PREFIX)
    return {row.name.removeprefix(SKIP_PREFIX): row for row in found}


async def skip_event(actor: Actor, event_id: str, position: str) -> None:
    """Leave out the messages of the event, in the actor's name."""
    name = f"{SKIP_PREFIX}{event_id}"
    await actor.send(c.TakeCursor, name=name, holder=actor.name, lease=0, start=position)
