"""The relay: reads the log after its cursor, tells it outside, then moves the cursor; in this order, always.

Killed anywhere, the next one begins where the cursor is: what was sent and not noted is sent again, with the
same ids. One relay at a time holds the cursor, by a lease; one that slept and wakes up cannot move it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from endwell.errors import EndwellError, Refused, StoreError
from endwell.model import commands as c
from endwell.model.cursor import Cursor
from endwell.pmo.relay.messages import Outgoing, messages, turn_after
from endwell.pmo.relay.sink import Sink, SinkError
from endwell.pmo.relay.skips import skips
from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.settings.sections import RelaySettings as RelaySettings
from endwell.store.contract import Store
from endwell.store.log import Logged
from endwell.store.log_pages import next_page

log = logging.getLogger(__name__)

CURSOR: Final = "relay"
MOST_TURNS: Final = 10_000
"""So many tasks' turns are kept in mind; the rest is read again."""
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
        self._cursor: Cursor | None = None
        self._good_until = 0.0
        self._turns: dict[str, str | None] = {}
        self._rung = asyncio.Event()
        self._stopped = asyncio.Event()
        self.sent = 0
        self.failures = 0

    def heard(self, topics: object) -> None:
        """Something was committed: there may be something to tell."""
        self._rung.set()

    async def run(self) -> None:
        """Relay what there is, rest, look again; an outside that is away is tried again and again."""
        while not self._stopped.is_set():
            try:
                self._rung.clear()
                await self.run_once()
                await self._rest()
                continue
            except SinkError:
                pass  # already said; meanwhile another PMO may have more luck
            except (StoreError, Refused) as error:
                log.warning("the relay must wait: %s (%s)", error.message, error.code)
            except Exception:
                self.failures += 1
                log.exception("the relay failed")
            await self._runtime.wait(self._stopped, self._settings.pause_seconds)

    async def _rest(self) -> None:
        """A ring comes a moment before what it announces can be read everywhere."""
        if await self._runtime.wait(self._rung, self._settings.poll_seconds):
            await self._runtime.sleep(SHORTEST_REST_SECONDS)

    async def run_once(self) -> int:
        """Tell everything that there is to tell; how many messages that were."""
        count = 0
        try:
            while not self._stopped.is_set() and (cursor := await self._held()) is not None:
                page = await next_page(self._store, self._namespace, cursor.position, self._settings.batch)
                if not page:
                    break
                told = await self._wanted(await self._messages(page))
                await self._send(told)
                await self._move(page[-1].cursor)
                count += len(told)
        except BaseException:
            self._turns.clear()  # the page will be told again, as it was told the first time
            raise
        self.sent += count
        return count

    async def _held(self) -> Cursor | None:
        """The cursor, if it is ours or free. Its lease is renewed well before it lapses."""
        now = self._runtime.clock.monotonic()
        if self._cursor is not None and now < self._good_until - self._lease / 2:
            return self._cursor
        known = await self._store.cursor(self._namespace, CURSOR)
        if known is not None and known.holder != self.holder and known.lease_until > await self._store.now():
            self._cursor = None
            return None
        if self._cursor is None:
            self._turns.clear()  # others may have gone on meanwhile
        (reply,) = await self._store.commit((await self._taking(known is None),))
        self._cursor, self._good_until = reply.cursor, now + self._lease
        return self._cursor

    async def _taking(self, is_first: bool) -> c.TakeCursor:
        from_now_on = is_first and self._settings.start == "now"
        start = await self._store.log_end() if from_now_on else ""
        return c.TakeCursor(**self._about(), lease=int(self._lease * SECOND), start=start)

    async def _messages(self, page: Sequence[Logged]) -> list[Outgoing]:
        ids = sorted({one.event.task_id for one in page})
        tasks = {task.id: task for task in await self._store.tasks_by_ids(self._namespace, ids)}
        if len(self._turns) > MOST_TURNS:
            self._turns.clear()
        first = {one.event.task_id: one.event.version for one in reversed(page)}
        for task_id in ids:
            if task_id not in self._turns and first[task_id] > 1:
                earlier = await self._store.events_of_task(self._namespace, task_id)
                before = (event.fact for event in earlier if event.version < first[task_id])
                self._turns[task_id] = turn_after(before)
        return list(messages(page, tasks, self._turns, self._settings.events))

    async def _wanted(self, told: list[Outgoing]) -> list[Outgoing]:
        """Without what a person has had left out; asked only while the receiver refuses something."""
        if self._cursor is None or self._cursor.trouble is None:
            return told
        left_out = await skips(self._store, self._namespace)
        for message in told:
            if message.event_id in left_out:
                by = left_out[message.event_id].holder
                log.warning("message %s is left out: %s said so", message.id, by)
        return [message for message in told if message.event_id not in left_out]

    async def _send(self, told: Sequence[Outgoing]) -> None:
        """However long it takes, the cursor stays ours."""
        renewing = self._runtime.spawn(self._renew(), "endwell-relay-lease")
        try:
            await self._tried(told)
        finally:
            renewing.cancel()

    async def _renew(self) -> None:
        while True:
            await self._runtime.sleep(self._lease / 3)
            sent = self._runtime.clock.monotonic()
            try:
                (reply,) = await self._store.commit((await self._taking(False),))
            except StoreError as error:
                log.warning("the relay's lease could not be renewed: %s", error.message)
                continue
            if reply.cursor is not None and self._cursor is not None:
                self._good_until = sent + self._lease

    async def _tried(self, told: Sequence[Outgoing]) -> None:
        """A few tries with growing pauses; then the cursor is let go of, and nothing is skipped."""
        for number in range(self._settings.tries):
            try:
                await self._sink.send(told)
                return
            except SinkError as error:
                if error.at is not None:
                    error.message += f" (event {told[error.at].event_id})"
                told = told[error.sent :]
                await self._fail(error, is_last=number + 1 == self._settings.tries)
            except Exception as error:
                trouble = SinkError(f"{self._sink.shown}: {str(error) or type(error).__name__}")
                await self._fail(trouble, is_last=number + 1 == self._settings.tries)
            longest = min(self._settings.retry_seconds * 2**number, self._settings.pause_seconds)
            await self._runtime.sleep(longest * (0.5 + self._runtime.ids.fraction() / 2))

    async def _fail(self, error: SinkError, *, is_last: bool) -> None:
        self.failures += 1
        log.warning("the relay cannot tell the outside: %s", error.message)
        if self._cursor is not None:
            await self._move(self._cursor.position, trouble=error.message, let_go=is_last)
        if is_last:
            raise error

    async def _move(self, position: str, *, trouble: str | None = None, let_go: bool = False) -> None:
        """If somebody else holds the cursor by now, we have been away too long: stop here."""
        cursor = self._cursor
        if cursor is None:
            return
        sent = self._runtime.clock.monotonic()
        command = c.MoveCursor(
            **self._about(),
            fence=cursor.fence,
            position=position,
            lease=0 if let_go else int(self._lease * SECOND),
            trouble=trouble,
        )
        (reply,) = await self._store.commit((command,))
        self._cursor = None if let_go else reply.cursor
        self._good_until = sent + self._lease
        if reply.refusal is not None:
            raise reply.refusal

    def _about(self) -> dict[str, Any]:
        return {
            "command_id": self._runtime.ids.new(),
            "namespace": self._namespace,
            "actor": self.holder,
            "name": CURSOR,
            "holder": self.holder,
        }

    def stop(self) -> None:
        """`run` returns after the batch under way."""
        self._stopped.set()
        self._rung.set()

    async def close(self) -> None:
        """Let go of the cursor, so that another PMO goes on at once."""
        try:
            if self._cursor is not None:
                await self._move(self._cursor.position, let_go=True)
        except EndwellError as error:
            log.warning("the relay could not let go of its cursor, its lease will lapse: %s", error.message)
        finally:
            await self._sink.close()


async def lag(store: Store, namespace: str, now: int) -> int | None:
    """How old the oldest committed event is that was not told yet, in microseconds; None without a relay."""
    cursor = await store.cursor(namespace, CURSOR)
    if cursor is None:
        return None
    at = await store.oldest_after(namespace, cursor.position)
    return 0 if at is None else max(0, now - at)
