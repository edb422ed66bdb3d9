"""The worker's watchdog: whatever should wake a suspended turn, and did not, is handed on again.

Each action is a command through the one door, so any number of watchdogs may run at once, and a tick that
is repeated does no harm. None of them ends a task: overdue waits are reported to the inbox, and the turn
goes on with the report by the normal path.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from endwell.errors import NotFound, Refused, StoreError
from endwell.model import commands as c
from endwell.model import content
from endwell.model.message import Message
from endwell.model.status import SUSPENDED
from endwell.model.task import Task
from endwell.policy.delivering import DELIVERY_FAILED, DELIVERY_RETRIES, is_exhausted
from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.settings import Settings
from endwell.store.contract import Store
from endwell.store.probe import NOW, Probe, ProbeResult
from endwell.worker.abandoned import AbandonedWork
from endwell.worker.pmo_liveness import PmoLiveness

log = logging.getLogger(__name__)

PAGE: Final = 200
PAGES: Final = 50
"""Most pages of one kind in a tick; what is left is found by the next one."""
NO_DEFECT: Final = (Refused, NotFound)
SHORTEST_REST_SECONDS: Final = 0.02
_IN_LEDGER: Final = ("tool_result", "timeout", "child")
_FAILURES: Final = ("failed", "timeout", "canceled")


class WorkerWatchdog:
    """`run()` watches until `stop()`; tests call `run_once()`."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        settings: Settings,
        *,
        namespace: str,
        actor: str,
        also: Sequence[Probe] = (),
        told: Callable[[ProbeResult], None] = lambda seen: None,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._settings = settings.worker
        interval = settings.pmo.watchdog_interval_seconds
        self.overseen = PmoLiveness(actor, interval_seconds=interval)
        self._namespace = namespace
        self._actor = actor
        self.stale = AbandonedWork(store, runtime, settings, namespace=namespace, actor=actor)
        self._next_wait = Probe("next_wait", (namespace,), is_value=True)
        # All that a tick looks for, in one statement; a worker adds what it would have to ask itself.
        self._asked = (
            Probe("lapsed_resumes", (namespace, NOW)),
            Probe("pending_resumes", (namespace, NOW, 1)),
            Probe("answers_waiting", (namespace, NOW, 1)),
            Probe("due_waits", (namespace, NOW, 1)),
            Probe("undelivered", (namespace, NOW, 1)),
            Probe("processing_since", (namespace, NOW, self.stale.patience)),
            Probe("expired_claims", (namespace, NOW, 1)),
            self._next_wait,
            Probe("last_tick", (namespace,), is_value=True),
            *also,
        )
        self._told = told
        self._seen: ProbeResult | None = None
        self._nudged = asyncio.Event()
        self._rests_until: float | None = None
        self._ticking = asyncio.Lock()
        self._stopping = False
        self._looked_at = 0
        self._ticked_at: float | None = None
        self.failures = 0

    @property
    def tick_age(self) -> int | None:
        """How long ago the last tick came to its end, in microseconds; None before the first."""
        if self._ticked_at is None:
            return None
        return int((self._runtime.clock.monotonic() - self._ticked_at) * SECOND)

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
            seen = await self._store.glance(*self._asked)
            self._told(seen)
            now = seen.now
            if seen["processing_since"]:
                await self.stale.requeue_messages(now)
            if seen["lapsed_resumes"]:
                await self._requeue_expired_resume_ledgers()
            if seen.any("lapsed_resumes", "pending_resumes", "answers_waiting"):
                await self._reconcile(now)
            if seen["due_waits"]:
                await self._inject_timeouts(now)
            if seen["undelivered"]:
                await self._clear_up(now)
            await self.stale.reclaim(now, is_needed=seen["expired_claims"])
            self._looked_at = now
            self._seen = seen
            self.overseen.look(now, seen["last_tick"])
            self._ticked_at = self._runtime.clock.monotonic()

    async def _requeue_expired_resume_ledgers(self) -> None:
        await self._store.one(c.RequeueResumes(**self._about()))

    async def _reconcile(self, now: int) -> None:
        """Hand on what lies in the resume ledger, and answers of which nobody was told."""
        resumes = await self._store.pending_resumes(self._namespace, now, PAGE)
        await self._hand_on(resumes)
        untold = await self._store.answers_waiting(self._namespace, now, PAGE)
        await self._commit([await self._answered_again(*each) for each in untold])

    async def _hand_on(self, messages: Sequence[tuple[str, str, int]]) -> None:
        """Messages whose retries are used up are laid aside; those whose delivery failed go one by one.

        A delivery that ends the process must not count its neighbours down, so the least suspect come first.
        """
        await self._commit([self._skip(*each) for *each, count in messages if is_exhausted(count)])
        new = [self._deliver(*each) for *each, count in messages if count == 0]
        if new:
            await self._try_to_deliver(new)
        suspects = [each for each in messages if each[2] > 0 and not is_exhausted(each[2])]
        for message_id, task_id, _ in sorted(suspects, key=itemgetter(2)):
            await self._try_to_deliver([self._deliver(message_id, task_id)])

    async def _try_to_deliver(self, commands: Sequence[c.Deliver]) -> None:
        """Counting is a commit of its own: a delivery that ends this process has been counted by then."""
        lease = int(self._settings.lease_seconds * SECOND)
        ids = tuple(command.message_id for command in commands)
        await self._store.one(c.TakeResumes(message_ids=ids, lease=lease, **self._about()))
        for command, reply in zip(commands, await self._store.commit(commands), strict=True):
            if isinstance(reply.refusal, StoreError):
                raise reply.refusal
            if reply.refusal is not None and not isinstance(reply.refusal, NO_DEFECT):
                log.error("message %s could not be handed on: %r", command.message_id, reply.refusal)

    async def _inject_timeouts(self, now: int) -> None:
        for _ in range(PAGES):
            overdue = await self._store.due_waits(self._namespace, now, PAGE)
            moved = await self._commit(
                [c.InjectTimeout(task_id=task_id, **self._about()) for task_id in overdue]
            )
            if len(overdue) < PAGE and not any(_is_still_due(task, now) for task in moved):
                return

    async def _clear_up(self, now: int) -> None:
        """Messages to tasks that have ended, second answers, and whatever else could be consumed.

        Not a `stop`: what follows from it may end a task, and that is for the PMO to do.
        """
        found = await self._store.undelivered(self._namespace, now, PAGE)
        answers: list[Message] = []
        others: list[tuple[str, str, int]] = []
        for message, status, count in found:
            if message.message_type == "stop":
                continue
            if status == SUSPENDED and message.message_type in _IN_LEDGER:
                answers.append(message)
            else:
                others.append((message.id, message.task_id or "", count))
        await self._hand_on(others)
        if answers:
            await self._close_late(answers)

    async def _close_late(self, answers: list[Message]) -> None:
        """Answers to calls of which the record is already there: acknowledged, and kept as they are."""
        calls = [message.correlation_id for message in answers]
        recorded = {card.id for card in await self._store.cards_by_ids(self._namespace, calls)}
        late = tuple(message.id for message in answers if message.correlation_id in recorded)
        if late:
            close = c.CloseMessages(message_ids=late, why="late", status="consumed", **self._about())
            await self._commit([close])

    async def _commit(self, commands: Sequence[c.Command]) -> list[Task]:
        """The tasks that were moved. Another watchdog may have been faster; other refusals are named."""
        if not commands:
            return []
        moved: list[Task] = []
        for command, reply in zip(commands, await self._store.commit(commands), strict=True):
            if isinstance(reply.refusal, StoreError):
                raise reply.refusal
            if reply.refusal is not None:
                name = type(command).__name__
                log.info("%s: %s was refused: %s", self._actor, name, reply.refusal.message)
            elif reply.task is not None:
                moved.append(reply.task)
        return moved

    def _deliver(self, message_id: str, task_id: str) -> c.Deliver:
        return c.Deliver(task_id=task_id, message_id=message_id, is_counted=True, **self._about())

    def _skip(self, message_id: str, task_id: str) -> c.SkipMessage:
        log.error("message %s is laid aside: %d deliveries failed", message_id, DELIVERY_RETRIES)
        return c.SkipMessage(task_id=task_id, message_id=message_id, why=DELIVERY_FAILED, **self._about())

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
            if seconds > 0 and await self._is_hastened(max(seconds, SHORTEST_REST_SECONDS), until):
                return
            if not self._nudged.is_set():
                return
            await self._runtime.sleep(SHORTEST_REST_SECONDS)  # of many nudges, one look is enough
            self._nudged.clear()

    async def _is_hastened(self, seconds: float, until: float) -> bool:
        """Wait so long, or until nudged; whether it was for a tick that somebody needs now."""
        self._rests_until = until
        await self._runtime.wait(self._nudged, seconds)
        is_hastened, self._rests_until = self._rests_until is None, None
        if is_hastened:
            self._nudged.clear()
        return is_hastened

    async def _seconds_to_next_wait(self) -> float:
        """What was overdue at the last look has been seen to, as far as that was possible."""
        seen, self._seen = self._seen, None
        if seen is None or seen.any("due_waits", "pending_resumes", "answers_waiting", "undelivered"):
            seen = await self._store.glance(self._next_wait)
        at = seen["next_wait"]
        if at is None or at <= self._looked_at:
            return self._settings.watchdog_interval_seconds
        return float(at - seen.now) / SECOND

    async def _pause(self) -> None:
        await self._runtime.wait(self._nudged, self._settings.watchdog_interval_seconds)
        self._nudged.clear()

    def nudge(self) -> None:
        """A turn was suspended: its waits may be over before the next tick."""
        self._nudged.set()

    def hasten(self, seconds: float) -> bool:
        """Tick now if that is due within so many seconds anyway; False if it is not, or is under way."""
        if self._rests_until is None or self._rests_until - self._runtime.clock.monotonic() > seconds:
            return False
        self._rests_until = None
        self._nudged.set()
        return True

    def stop(self) -> None:
        """`run` returns after the tick under way."""
        self._stopping = True
        self._nudged.set()


def _is_still_due(task: Task, now: int) -> bool:
    """Whether a turn has more overdue waits than one command reports."""
    return task.status == SUSPENDED and task.wait_by is not None and task.wait_by <= now


def _status_of(answer: Any) -> str:
    """A failure is kept as `{"status", "error"}`; anything else is what a tool returned."""
    if isinstance(answer, dict) and set(answer) == {"status", "error"} and answer["status"] in _FAILURES:
        return str(answer["status"])
    return "success"
