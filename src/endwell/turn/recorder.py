"""The recorder of a turn: what the verbs of its context share.

It reads what earlier attempts recorded, and hands commands to the store until the store has taken them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from endwell.errors import ReplayMismatch, StoreError
from endwell.machine.decision import stale_attempt
from endwell.model import commands as c
from endwell.model.card import Card, record_id, records_between
from endwell.model.effect import Effect
from endwell.model.inside import inside_of
from endwell.model.moments import SECOND
from endwell.model.session import Session
from endwell.model.task import Task
from endwell.policy.limits import Limits
from endwell.policy.waiting import refuse_too_many
from endwell.runtime.base import Runtime
from endwell.runtime.running_calls import RunningCalls
from endwell.settings.sections import WorkerSettings as WorkerSettings
from endwell.store.effect_store import EffectStore
from endwell.store.rows import Reply
from endwell.turn.directory import Directory, SpecStore
from endwell.turn.repeat_guard import RepeatGuard, RepeatReport
from endwell.turn.step_ids import EffectRuns, StepIds
from endwell.turn.suspension import Suspended
from endwell.turn.threads import TurnThreads

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
"""How long a command waits before a store that failed is asked again."""
LONG_STEP_SECONDS = 1.0
"""The heartbeat reports a step that runs for longer, so that others see which worker is at it."""
_FAILED = ("failed", "timeout", "canceled", "expired")
REFERRING = ("step.reference", "tool.result")
"""Kinds of records whose content names the card that holds the value."""

AnyCommand = TypeVar("AnyCommand", bound=c.TaskCommand)
T = TypeVar("T")


class TurnStore(SpecStore, Protocol):
    """The methods of `Store` that a turn calls. In a child process `RemoteStore` has each of them."""

    async def commit(self, commands: Sequence[c.Command]) -> list[Reply]: ...

    async def now(self) -> int: ...

    async def card(self, namespace: str, card_id: str) -> Card: ...

    async def cards_between(self, namespace: str, first: str, last: str) -> list[Card]: ...

    async def cards_page(self, namespace: str, after: str, before: str, limit: int) -> list[Card]: ...

    async def cards_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Card]: ...

    async def effect(self, namespace: str, key: str) -> Effect | None: ...

    async def session(self, namespace: str, session_id: str) -> Session | None: ...


class Hold(Protocol):
    """What a verb must know about the hold on its task."""

    @property
    def is_lost(self) -> bool:
        """Whether another attempt may hold the task."""

    def lasts_for(self, seconds: float) -> bool:
        """Whether the lease holds for this long, by the worker's own clock."""

    async def refresh(self) -> None:
        """Find out what is left of the lease, where that must be asked for."""


@dataclass(frozen=True, kw_only=True)
class TurnResources:
    """What a process gives to each of its turns."""

    store: TurnStore
    runtime: Runtime
    settings: WorkerSettings
    limits: Limits
    directory: Directory
    calls: RunningCalls
    effects: EffectStore | None = None


@dataclass(frozen=True, kw_only=True)
class StepDefaults:
    """What an agent was registered with and its steps use; a timeout of None is that of the settings."""

    timeout_seconds: float | None = None
    give_up_on: tuple[type[BaseException], ...] = ()


class Recorder:
    """Records one turn."""

    def __init__(
        self,
        resources: TurnResources,
        task: Task,
        hold: Hold,
        threads: TurnThreads,
        *,
        actor: str,
        steps: StepDefaults,
    ) -> None:
        self.task = task
        self.attempt_id = task.attempt_id or ""
        self.hold = hold
        self.threads = threads
        self.actor = actor
        self.store = resources.store
        self.runtime = resources.runtime
        self.settings = resources.settings
        self.limits = resources.limits
        self.directory = resources.directory
        self.calls = resources.calls
        self.effects = resources.effects
        self.step_timeout = steps.timeout_seconds or resources.settings.step_timeout_seconds
        self.give_up_on = steps.give_up_on
        self.run = inside_of(task).run
        self.nudges = inside_of(task).nudges
        self.runs = EffectRuns(self.runtime)
        self.ids = StepIds(self.run, self.runs)
        self.repeat_guard = RepeatGuard(self.limits.repeat_limit, self.runtime.clock)
        self.doing: dict[str, int] = {}
        """The steps under way, and since when."""
        self._progress_at = self.runtime.clock.monotonic()
        self._commands = 0
        self._records: dict[str, Card] | None = None
        self._referred: dict[str, Card] = {}
        self._asking_bytes = 0

    def command(self, kind: Callable[..., AnyCommand], **fields: Any) -> AnyCommand:
        """A command of this attempt, with an id that no other process gives."""
        self._commands += 1
        return kind(
            command_id=f"{self.attempt_id}.{self._commands}",
            namespace=self.task.namespace,
            actor=self.actor,
            task_id=self.task.id,
            attempt_id=self.attempt_id,
            **fields,
        )

    async def commit(self, *commands: c.Command) -> Reply:
        """Hand in commands together; the last reply, or the first refusal raised.

        While the store is away this waits, so that the agent does not notice.
        """
        sent = self.runtime.clock.monotonic()
        if self.hold.is_lost:
            raise stale_attempt(self.task, self.attempt_id)
        try:
            replies = await self._commit_once(commands)
        except StoreError:
            replies = await self.ask_store(lambda: self._commit_once(commands))
        self._progress_at = sent
        task = replies[-1].task
        if task is not None and task.inside is not None and '"nudges"' in task.inside:
            self.nudges = inside_of(task).nudges
        return replies[-1]

    async def _commit_once(self, commands: Sequence[c.Command]) -> list[Reply]:
        replies = await self.store.commit(commands)
        for reply in replies:
            if reply.refusal is not None:
                raise reply.refusal
        return replies

    async def ask_store(self, question: Callable[[], Awaitable[T]]) -> T:
        """The store's answer, asked for until the store is there."""
        while not self.hold.is_lost:
            try:
                return await question()
            except StoreError as error:
                log.warning("task %s must wait for the store: %s", self.task.id, error.message)
                await self.runtime.sleep(PAUSE_SECONDS)
        raise stale_attempt(self.task, self.attempt_id)

    def refuse_ended(self, reply: Reply) -> None:
        """Raise `StaleAttempt` if the machine has ended the task by the command it was given."""
        if reply.task is not None and reply.task.is_ended:
            raise stale_attempt(self.task, self.attempt_id)

    async def tell_progress(self, note: str | None, *, news: str | None) -> None:
        """Record a sign of life that says `note`; `news` is the part of it that may count as new."""
        quiet = self.repeat_guard.quiet_us(news, is_in_step=bool(self.doing))
        self.refuse_ended(await self.commit(self.command(c.Progress, note=note, without_news=quiet)))

    async def report_repeat(self, report: RepeatReport | None) -> None:
        """Have the machine judge a row of repeats, if there is one to judge."""
        if report is not None:
            repeat = self.command(c.Repeat, about=report.about, count=report.times)
            self.refuse_ended(await self.commit(repeat))

    async def announce_step(self, step: str, seconds: float) -> None:
        """Name a step that may take this long, if the turn would be reaped before it ends."""
        reap, grace = self.limits.active_reap, self.limits.step_grace
        silent = self.runtime.clock.monotonic() - self._progress_at
        if reap is not None and (silent + seconds) * SECOND + grace > reap:
            await self.commit(self.command(c.StartStep, step=step, timeout=int(seconds * SECOND)))

    async def load_records(self) -> dict[str, Card]:
        """What earlier attempts recorded in this run, by record id; read once, in one question."""
        if self._records is None:
            may_have = inside_of(self.task).steps > 0
            self._records = await self.ask_store(self._read_records) if may_have else {}
        return self._records

    async def _read_records(self) -> dict[str, Card]:
        first, last = records_between(self.task.id, self.run)
        cards = await self.store.cards_between(self.task.namespace, first, last)
        refs = [ref for card in cards if card.kind in REFERRING and (ref := referred_id(card))]
        if refs:
            found = await self.store.cards_by_ids(self.task.namespace, refs)
            self._referred = {card.id: card for card in found}
        return {card.id: card for card in cards}

    async def record_of(self, step: str) -> Card | None:
        if self._records is not None and not self._records:
            return None
        return (await self.load_records()).get(record_id(self.task.id, step))

    async def answer_to(self, step: str) -> tuple[str, Card | None]:
        """The identity of a waiting step in this turn, and the record of its answer.

        A call that failed in an earlier turn has a new identity: trying again is what the new turn is for.
        """
        card = await self.record_of(step)
        if card is not None and card.kind != "tool.result":
            raise ReplayMismatch(
                f"step {step!r} has the record of a step, not the answer to a call",
                hint="give the call a new name",
            )
        if card is None or not _failed_before(card, self.task.turn_id):
            return step, card
        again = f"{step}@{self.task.turn_number}"
        return again, await self.record_of(again)

    async def referred_card(self, record: Card) -> Card:
        """The card with the content that a record points to; read together with the records."""
        return await self.card(referred_id(record) or "")

    async def card(self, card_id: str) -> Card:
        """One card of this run, or of the task that it points to."""
        found = self._referred.get(card_id)
        if found is None:
            found = await self.ask_store(lambda: self.store.card(self.task.namespace, card_id))
        return found

    def admit_wait(self, step: str, wait: Suspended) -> BaseException:
        """What a verb raises to wait: an error if the branches of the turn would ask with too many bytes.

        Each branch is refused as it comes, so that its content does not stay in memory.
        """
        too_much = refuse_too_many(wait.calls, self._asking_bytes + wait.content_size)
        if too_much is None:
            self._asking_bytes += wait.content_size
            self.ids.note_wait(step)
        return too_much or wait

    def drop_wait(self, wait: Suspended) -> None:
        """A branch would wait, but its gather fails."""
        self._asking_bytes -= wait.content_size


def _failed_before(record: Card, turn_id: str | None) -> bool:
    said = msgspec.json.decode(record.content)
    return said["status"] in _FAILED and said.get("turn") != turn_id


def referred_id(record: Card) -> str | None:
    """The card that a record points to, if it does."""
    found: str | None = msgspec.json.decode(record.content).get("ref")
    return found
