"""The worker's watchdog: wakes suspended turns whose answer or deadline came without waking them.

Each action is a command, so any number of watchdogs may run at once, and a repeated tick does no harm. None
of them ends a task: an overdue wait is reported to the inbox, and the turn resumes with the report.
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
from endwell.model.moments import SECOND
from endwell.model.status import SUSPENDED
from endwell.model.task import Task
from endwell.policy.guard import DELIVERY_FAILED, DELIVERY_RETRIES, is_exhausted
from endwell.runtime.base import Runtime
from endwell.settings import Settings
from endwell.store.actor import Actor
from endwell.store.probe import NOW, Probe, ProbeResult
from endwell.worker.abandoned import AbandonedWork
from endwell.worker.pmo_liveness import PmoLiveness

log = logging.getLogger(__name__)

PAGE: Final = 200
PAGES: Final = 50
"""Most pages of one kind in a tick; the next tick finds the rest."""
EXPECTED: Final = (Refused, NotFound)
SHORTEST_REST_SECONDS: Final = 0.02
_IN_LEDGER: Final = ("tool_result", "timeout", "child")
_FAILURES: Final = ("failed", "timeout", "canceled")


class WorkerWatchdog:
    """`run()` watches until `stop()`; tests call `run_once()`.

    `questions` are asked with those of each tick, and `on_result` gets all answers: what a worker would have
    to ask by itself.
    """

    def __init__(
        self,
        actor: Actor,
        runtime: Runtime,
        settings: Settings,
        *,
        questions: Sequence[Probe] = (),
        on_result: Callable[[ProbeResult], None] = lambda result: None,
    ) -> None:
        self._actor = actor
        self._store = actor.store
        self._namespace = actor.namespace
        self._runtime = runtime
        self._settings = settings.worker
        self.pmo = PmoLiveness(actor.name, interval_seconds=settings.pmo.watchdog_interval_seconds)
        self.abandoned = AbandonedWork(actor, runtime, settings)
        self._next_wait = Probe("next_wait", (actor.namespace,), is_value=True)
        self._questions = (*self._own_questions(), *questions)
        self._on_result = on_result
        self._last_result: ProbeResult | None = None
        self._wake = asyncio.Event()
        self._rests_until: float | None = None
        self._ticking = asyncio.Lock()
        self._stopping = False
        self._looked_at = 0
        self._ticked_at: float | None = None
        self.failures = 0

    def _own_questions(self) -> tuple[Probe, ...]:
        """What each tick asks, in one statement."""
        namespace = self._namespace
        return (
            Probe("lapsed_resumes", (namespace, NOW)),
            Probe("pending_resumes", (namespace, NOW, 1)),
            Probe("answers_waiting", (namespace, NOW, 1)),
            Probe("due_waits", (namespace, NOW, 1)),
            Probe("undelivered", (namespace, NOW, 1)),
            Probe("processing_since", (namespace, NOW, self.abandoned.patience)),
            Probe("expired_claims", (namespace, NOW, 1)),
            self._next_wait,
            Probe("last_tick", (namespace,), is_value=True),
        )

    @property
    def tick_age(self) -> int | None:
        """Microseconds since the last tick ended; None before the first."""
        if self._ticked_at is None:
            return None
        return int((self._runtime.clock.monotonic() - self._ticked_at) * SECOND)

    async def run(self) -> None:
        """Tick at the start, then once per interval, and whenever a wait is over."""
        while not self._stopping:
            try:
                await self.run_once()
                await self._wait_for_next_tick()
            except StoreError as error:
                self.failures += 1
                log.warning(
                    "%s: the watchdog must wait: %s (%s)", self._actor.name, error.message, error.code
                )
                await self._pause()
            except Exception:
                self.failures += 1
                log.exception("%s: a tick of the watchdog failed", self._actor.name)
                await self._pause()

    async def run_once(self) -> None:
        """One tick. Answers that are there are delivered before timeouts are reported."""
        async with self._ticking:
            result = await self._store.probe(*self._questions)
            self._on_result(result)
            now = result.now
            if result["processing_since"]:
                await self.abandoned.requeue_messages(now)
            if result["lapsed_resumes"]:
                await self._actor.send(c.RequeueResumes)
            if result.has_any("lapsed_resumes", "pending_resumes", "answers_waiting"):
                await self._deliver_answers(now)
            if result["due_waits"]:
                await self._inject_timeouts(now)
            if result["undelivered"]:
                await self._clear_inbox(now)
            await self.abandoned.reclaim(now, is_needed=result["expired_claims"])
            self._looked_at = now
            self._last_result = result
            self.pmo.check(now, result["last_tick"])
            self._ticked_at = self._runtime.clock.monotonic()

    async def _deliver_answers(self, now: int) -> None:
        """Deliver what lies in the resume ledger, and answers that have no message yet."""
        resumes = await self._store.pending_resumes(self._namespace, now, PAGE)
        await self._deliver_all(resumes)
        silent = await self._store.answers_waiting(self._namespace, now, PAGE)
        await self._commit([await self._answer_again(*each) for each in silent])

    async def _deliver_all(self, messages: Sequence[tuple[str, str, int]]) -> None:
        """Deliver messages; those whose delivery failed before go one by one, and are skipped in the end.

        A delivery that ends the process must not count its neighbours down, so the least suspect come first.
        """
        await self._commit([self._skip_command(*each) for *each, count in messages if is_exhausted(count)])
        new = [self._deliver(*each) for *each, count in messages if count == 0]
        if new:
            await self._try_to_deliver(new)
        suspects = [each for each in messages if each[2] > 0 and not is_exhausted(each[2])]
        for message_id, task_id, _ in sorted(suspects, key=itemgetter(2)):
            await self._try_to_deliver([self._deliver(message_id, task_id)])

    async def _try_to_deliver(self, commands: Sequence[c.Deliver]) -> None:
        """Count first, in a commit of its own: then a delivery that ends this process has been counted."""
        lease = int(self._settings.lease_seconds * SECOND)
        ids = tuple(command.message_id for command in commands)
        await self._actor.send(c.TakeResumes, message_ids=ids, lease=lease)
        for command, reply in zip(commands, await self._actor.commit(commands), strict=True):
            if isinstance(reply.refusal, StoreError):
                raise reply.refusal
            if reply.refusal is not None and not isinstance(reply.refusal, EXPECTED):
                log.error("message %s could not be delivered: %r", command.message_id, reply.refusal)

    async def _inject_timeouts(self, now: int) -> None:
        for _ in range(PAGES):
            overdue = await self._store.due_waits(self._namespace, now, PAGE)
            moved = await self._commit(
                [self._actor.command(c.InjectTimeout, task_id=task_id) for task_id in overdue]
            )
            if len(overdue) < PAGE and not any(_is_still_due(task, now) for task in moved):
                return

    async def _clear_inbox(self, now: int) -> None:
        """Consume messages to ended tasks, second answers, and others that no turn will read.

        Not a `stop`: it may end a task, and only the PMO does that.
        """
        found = await self._store.undelivered_messages(self._namespace, now, PAGE)
        answers: list[Message] = []
        others: list[tuple[str, str, int]] = []
        for message, status, count in found:
            if message.message_type == "stop":
                continue
            if status == SUSPENDED and message.message_type in _IN_LEDGER:
                answers.append(message)
            else:
                others.append((message.id, message.task_id or "", count))
        await self._deliver_all(others)
        if answers:
            await self._close_late(answers)

    async def _close_late(self, answers: list[Message]) -> None:
        """Close answers to calls that have their record already; the answers are kept."""
        calls = [message.correlation_id for message in answers]
        recorded = {card.id for card in await self._store.cards_by_ids(self._namespace, calls)}
        late = tuple(message.id for message in answers if message.correlation_id in recorded)
        if late:
            close = self._actor.command(c.CloseMessages, message_ids=late, why="late", status="consumed")
            await self._commit([close])

    async def _commit(self, commands: Sequence[c.Command]) -> list[Task]:
        """The tasks that were moved; refusals are logged, since another watchdog may have been faster."""
        if not commands:
            return []
        moved: list[Task] = []
        for command, reply in zip(commands, await self._actor.commit(commands), strict=True):
            if isinstance(reply.refusal, StoreError):
                raise reply.refusal
            if reply.refusal is not None:
                name = type(command).__name__
                log.info("%s: %s was refused: %s", self._actor.name, name, reply.refusal.message)
            elif reply.task is not None:
                moved.append(reply.task)
        return moved

    def _deliver(self, message_id: str, task_id: str) -> c.Deliver:
        return self._actor.command(c.Deliver, task_id=task_id, message_id=message_id, is_counted=True)

    def _skip_command(self, message_id: str, task_id: str) -> c.SkipMessage:
        log.error("message %s is skipped: %d deliveries failed", message_id, DELIVERY_RETRIES)
        return self._actor.command(c.SkipMessage, task_id=task_id, message_id=message_id, why=DELIVERY_FAILED)

    async def _answer_again(self, task_id: str, tool_call_id: str, card_id: str) -> c.Answer:
        card = await self._store.card(self._namespace, card_id)
        return self._actor.command(
            c.Answer,
            task_id=task_id,
            tool_call_id=tool_call_id,
            content=card.content,
            content_hash=card.hash,
            status=_status_of(content.decode_stored(card.content)),
        )

    async def _wait_for_next_tick(self) -> None:
        """Rest until the interval is over, or a wait is; a turn that suspends may bring an earlier one."""
        until = self._runtime.clock.monotonic() + self._settings.watchdog_interval_seconds
        while not self._stopping:
            due = await self._seconds_to_next_wait()
            seconds = min(until - self._runtime.clock.monotonic(), due)
            if seconds > 0 and await self._is_tick_wanted(max(seconds, SHORTEST_REST_SECONDS), until):
                return
            if not self._wake.is_set():
                return
            await self._runtime.sleep(SHORTEST_REST_SECONDS)  # one look for many suspensions
            self._wake.clear()

    async def _is_tick_wanted(self, seconds: float, until: float) -> bool:
        """Rest this long, or until woken; whether `tick_if_due` asked for a tick."""
        self._rests_until = until
        await self._runtime.wait(self._wake, seconds)
        is_wanted, self._rests_until = self._rests_until is None, None
        if is_wanted:
            self._wake.clear()
        return is_wanted

    async def _seconds_to_next_wait(self) -> float:
        """Seconds to the next deadline of a wait; what was overdue at the last look counts as handled."""
        result, self._last_result = self._last_result, None
        handled = ("due_waits", "pending_resumes", "answers_waiting", "undelivered")
        if result is None or result.has_any(*handled):
            result = await self._store.probe(self._next_wait)
        at = result["next_wait"]
        if at is None or at <= self._looked_at:
            return self._settings.watchdog_interval_seconds
        return float(at - result.now) / SECOND

    async def _pause(self) -> None:
        await self._runtime.wait(self._wake, self._settings.watchdog_interval_seconds)
        self._wake.clear()

    def look_at_waits(self) -> None:
        """A turn was suspended: its waits may be over before the next tick."""
        self._wake.set()

    def tick_if_due(self, seconds: float) -> bool:
        """Tick now if a tick is due within this time anyway; False if none is, or one is under way."""
        if self._rests_until is None or self._rests_until - self._runtime.clock.monotonic() > seconds:
            return False
        self._rests_until = None
        self._wake.set()
        return True

    def stop(self) -> None:
        """`run` returns after the tick under way."""
        self._stopping = True
        self._wake.set()


def _is_still_due(task: Task, now: int) -> bool:
    """Whether a turn has more overdue waits than one command reports."""
    return task.status == SUSPENDED and task.wait_by is not None and task.wait_by <= now


def _status_of(answer: Any) -> str:
    """A failure is kept as `{"status", "error"}`; anything else is what a tool returned."""
    if isinstance(answer, dict) and set(answer) == {"status", "error"} and answer["status"] in _FAILURES:
        return str(answer["status"])
    return "success"
