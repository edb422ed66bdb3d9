"""The worker's watchdog: whatever should wake a suspended turn, and did not, is handed on again.

Each action is a command through the one door, so any number of watchdogs may run at once, and a tick that
is repeated does no harm. None of them ends a task: overdue waits are reported to the inbox, and the turn
goes on with the report by the normal path.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from endwell.errors import StoreError
from endwell.model import commands as c
from endwell.model import content
from endwell.model.message import Message
from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.settings.sections import Worker as WorkerSettings
from endwell.store.contract import Store
from endwell.store.door import follow_up

log = logging.getLogger(__name__)

PAGE: Final = 200
PAGES: Final = 50
"""Most pages of one kind in a tick; what is left is found by the next one."""
SHORTEST_REST_SECONDS: Final = 0.02
_IN_LEDGER: Final = ("tool_result", "timeout", "child")
_FAILURES: Final = ("failed", "timeout", "canceled")


class Watch:
    """`run()` watches until `stop()`; tests call `run_once()`."""

    def __init__(
        self, store: Store, runtime: Runtime, settings: WorkerSettings, *, namespace: str, actor: str
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._settings = settings
        self._namespace = namespace
        self._actor = actor
        self._nudged = asyncio.Event()
        self._ticking = asyncio.Lock()
        self._stopping = False
        self._looked_at = 0
        self.failures = 0

    async def run(self) -> None:
        """Tick at the start, then once per interval, and whenever a wait is over."""
        while not self._stopping:
            try:
                await self.run_once()
                await self._rest()
            except StoreError as error:
                self.failures += 1
                log.warning("%s: the watchdog must wait: %s (%s)", self._actor, error.message, error.code)
                await self._pause()
            except Exception:
                self.failures += 1
                log.exception("%s: a tick of the watchdog failed", self._actor)
                await self._pause()

    async def run_once(self) -> None:
        """One tick at a time: answers that are there come before the report that they are not."""
        async with self._ticking:
            now = await self._store.now()
            await self._requeue_expired_resume_ledgers()
            await self._reconcile(now)
            await self._inject_timeouts(now)
            await self._clear_up(now)
            self._looked_at = now

    async def _requeue_expired_resume_ledgers(self) -> None:
        await self._store.one(c.RequeueResumes(**self._about()))

    async def _reconcile(self, now: int) -> None:
        """Hand on what lies in the resume ledger, and answers of which nobody was told."""
        resumes = await self._store.pending_resumes(self._namespace, now, PAGE)
        if resumes:
            ids = tuple(message_id for message_id, _, _ in resumes)
            lease = int(self._settings.lease_seconds * SECOND)
            await self._store.one(c.TakeResumes(message_ids=ids, lease=lease, **self._about()))
            await self._commit([self._deliver(message_id, task_id) for message_id, task_id, _ in resumes])
        untold = await self._store.answers_waiting(self._namespace, now, PAGE)
        await self._commit([await self._answered_again(*each) for each in untold])

    async def _inject_timeouts(self, now: int) -> None:
        for _ in range(PAGES):
            overdue = await self._store.due_waits(self._namespace, now, PAGE)
            await self._commit([c.InjectTimeout(task_id=task_id, **self._about()) for task_id in overdue])
            if len(overdue) < PAGE:
                return

    async def _clear_up(self, now: int) -> None:
        """Messages to tasks that have ended, second answers, and whatever else could be consumed."""
        found = await self._store.undelivered(self._namespace, now, PAGE)
        answers: list[Message] = []
        others: list[Message] = []
        for message, status in found:
            is_answer = status == "suspended" and message.message_type in _IN_LEDGER
            (answers if is_answer else others).append(message)
        await self._commit([follow_up(message, self._actor) for message in others])
        if answers:
            await self._close_late(answers)

    async def _close_late(self, answers: list[Message]) -> None:
        """Answers to calls of which the record is already there: acknowledged, and kept as they are."""
        calls = [message.correlation_id for message in answers]
        recorded = {card.id for card in await self._store.cards_by_ids(self._namespace, calls)}
        late = tuple(message.id for message in answers if message.correlation_id in recorded)
        if late:
            await self._commit([c.CloseMessages(message_ids=late, why="late", **self._about())])

    async def _commit(self, commands: Sequence[c.Command]) -> None:
        """Somebody may have been faster; whatever else is refused is named."""
        if not commands:
            return
        for command, reply in zip(commands, await self._store.commit(commands), strict=True):
            if isinstance(reply.refusal, StoreError):
                raise reply.refusal
            if reply.refusal is not None:
                name = type(command).__name__
                log.info("%s: %s was refused: %s", self._actor, name, reply.refusal.message)

    def _deliver(self, message_id: str, task_id: str) -> c.Deliver:
        return c.Deliver(task_id=task_id, message_id=message_id, **self._about())

    async def _answered_again(self, task_id: str, tool_call_id: str, card_id: str) -> c.Answer:
        card = await self._store.card(self._namespace, card_id)
        return c.Answer(
            task_id=task_id,
            tool_call_id=tool_call_id,
            content=card.content,
            content_hash=card.hash,
            status=_status_of(content.decode_stored(card.content)),
            **self._about(),
        )

    def _about(self) -> dict[str, Any]:
        return {
            "command_id": self._runtime.ids.new(),
            "namespace": self._namespace,
            "actor": self._actor,
        }

    async def _rest(self) -> None:
        """Until the interval is over or a wait is; a nudge says that there is another one."""
        until = self._runtime.clock.monotonic() + self._settings.watchdog_interval_seconds
        while not self._stopping:
            due = await self._seconds_to_next_wait()
            seconds = min(until - self._runtime.clock.monotonic(), due)
            if seconds > 0:
                await self._runtime.wait(self._nudged, max(seconds, SHORTEST_REST_SECONDS))
            if not self._nudged.is_set():
                return
            await self._runtime.sleep(SHORTEST_REST_SECONDS)  # of many nudges, one look is enough
            self._nudged.clear()

    async def _seconds_to_next_wait(self) -> float:
        """What was overdue at the last look has been seen to, as far as that was possible."""
        at = await self._store.next_wait(self._namespace)
        if at is None or at <= self._looked_at:
            return self._settings.watchdog_interval_seconds
        return (at - await self._store.now()) / SECOND

    async def _pause(self) -> None:
        await self._runtime.wait(self._nudged, self._settings.watchdog_interval_seconds)
        self._nudged.clear()

    def nudge(self) -> None:
        """A turn was suspended: its waits may be over before the next tick."""
        self._nudged.set()

    def stop(self) -> None:
        """`run` returns after the tick under way."""
        self._stopping = True
        self._nudged.set()


def _status_of(answer: Any) -> str:
    """A failure is kept as `{"status", "error"}`; anything else is what a tool returned."""
    if isinstance(answer, dict) and set(answer) == {"status", "error"} and answer["status"] in _FAILURES:
        return str(answer["status"])
    return "success"
