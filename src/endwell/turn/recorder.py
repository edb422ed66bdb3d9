"""The bench: what all verbs of a context share about the turn that they work on.

It names steps, knows what is already recorded, and hands commands to the store until it has taken them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import msgspec

from endwell.errors import AmbiguousStep, BadInput, ReplayMismatch, StaleAttempt, StoreError
from endwell.model import commands as c
from endwell.model.card import Card, record_id, records_between
from endwell.model.effect import step_place
from endwell.model.inside import inside_of
from endwell.model.task import Task
from endwell.policy.limits import SECOND, Limits
from endwell.policy.waiting import refuse_too_many
from endwell.runtime.base import Runtime
from endwell.runtime.running_calls import RunningCalls
from endwell.settings.sections import WorkerSettings as WorkerSettings
from endwell.store.effect_store import EffectStore
from endwell.store.rows import Reply
from endwell.turn.directory import Directory
from endwell.turn.effect_runs import EffectAsk, EffectRuns
from endwell.turn.repeat_guard import RepeatGuard, stopped
from endwell.turn.suspension import Suspended
from endwell.turn.threads import TurnThreads
from endwell.turn.turn_store import TurnStore

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
"""How long a command waits before a store that failed is asked again."""
NAME_LIMIT = 200
LOOK_SECONDS = 1.0
"""A step that runs for longer is told to the store, so that everybody sees who is at it."""
_FAILED = ("failed", "timeout", "canceled", "expired")
REFERRING = ("step.reference", "tool.result")
"""Records whose content names the card that holds the value."""
BRANCH: ContextVar[str] = ContextVar("endwell_branch", default="")
"""The path of the branch that runs: which gather, which of its parts, and so on inwards."""

AnyCommand = TypeVar("AnyCommand", bound=c.TaskCommand)
T = TypeVar("T")


class Hold(Protocol):
    """What a verb must know about the hold on its task."""

    @property
    def is_lost(self) -> bool:
        """Whether the task has been given to somebody else."""

    def covers(self, seconds: float) -> bool:
        """Whether this worker's lease holds for so long by its own clock."""

    async def look(self) -> None:
        """Find out what is left of the lease, where that must be asked for."""


class Recorder:
    """One per turn."""

    def __init__(
        self,
        task: Task,
        hold: Hold,
        *,
        actor: str,
        store: TurnStore,
        runtime: Runtime,
        settings: WorkerSettings,
        limits: Limits,
        threads: TurnThreads,
        step_timeout: float | None = None,
        give_up_on: tuple[type[BaseException], ...] = (),
        directory: Directory,
        effects: EffectStore | None = None,
        calls: RunningCalls,
    ) -> None:
        self.task = task
        self.attempt_id = task.attempt_id or ""
        self.hold = hold
        self.actor = actor
        self.store = store
        self.runtime = runtime
        self.settings = settings
        self.limits = limits
        self.threads = threads
        self.step_timeout = step_timeout or settings.step_timeout_seconds
        self.give_up_on = give_up_on
        self.effects = effects
        self.calls = calls
        self.runs = EffectRuns(runtime)
        self.directory = directory
        self.run = inside_of(task).run
        self._said_at = runtime.clock.monotonic()
        self._commands = 0
        self._records: dict[str, Card] | None = None
        self._referred: dict[str, Card] = {}
        self._numbers: Counter[str] = Counter()
        self._in_flight: set[str] = set()
        self._waiting: set[str] = set()
        self._ambiguous: AmbiguousStep | None = None
        self._rejoined: dict[str, str] = {}
        self._asking_bytes = 0
        self.doing: dict[str, int] = {}
        self.nudges = inside_of(task).nudges
        self.circles = RepeatGuard(self)

    def command(self, kind: Callable[..., AnyCommand], **fields: Any) -> AnyCommand:
        """A command of this attempt, numbered: nobody else speaks for it but the worker, of its end."""
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
        """Hand them in together; the last reply, or the first refusal raised.

        A store that is away for a moment is no fault of the agent's: it is told when it is back.
        """
        sent = self.runtime.clock.monotonic()
        if self.hold.is_lost:
            raise self._lost()
        try:
            replies = await self._committed(commands)
        except StoreError:
            replies = await self._until_taken(lambda: self._committed(commands))
        self._said_at = sent
        self._hear(replies[-1].task)
        return replies[-1]

    def _hear(self, task: Task | None) -> None:
        if task is not None and task.inside is not None and '"nudges"' in task.inside:
            self.nudges = inside_of(task).nudges

    def refuse_ended(self, reply: Reply) -> None:
        """The machine may have ended the task by what it was just told."""
        if reply.task is not None and reply.task.is_ended:
            raise stopped(self.task.id, self.attempt_id)

    async def expect(self, step: str, seconds: float) -> None:
        """Before something that takes so long: if the turn would be reaped meanwhile, say what it is at."""
        reap, grace = self.limits.active_reap, self.limits.step_grace
        silent = self.runtime.clock.monotonic() - self._said_at
        if reap is not None and (silent + seconds) * SECOND + grace > reap:
            await self.commit(self.command(c.StartStep, step=step, timeout=int(seconds * SECOND)))

    async def _committed(self, commands: Sequence[c.Command]) -> list[Reply]:
        replies = await self.store.commit(commands)
        for reply in replies:
            if reply.refusal is not None:
                raise reply.refusal
        return replies

    async def asked(self, question: Callable[[], Awaitable[T]]) -> T:
        """A question to the store, asked until it answers."""
        answer: T = await self._until_taken(question)
        return answer

    async def _until_taken(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        while not self.hold.is_lost:
            try:
                return await ask()
            except StoreError as error:
                log.warning("task %s must wait for the store: %s", self.task.id, error.message)
                await self.runtime.sleep(PAUSE_SECONDS)
        raise self._lost()

    def _lost(self) -> StaleAttempt:
        return StaleAttempt(f"attempt {self.attempt_id} no longer holds its task", task_id=self.task.id)

    async def records(self) -> dict[str, Card]:
        """What earlier attempts recorded in this run, by record id; read once, in one question."""
        if self._records is None:
            self._records = await self._until_taken(self._read_records) if self._may_have() else {}
        return self._records

    def _may_have(self) -> bool:
        return inside_of(self.task).steps > 0

    async def _read_records(self) -> dict[str, Card]:
        first, last = records_between(self.task.id, self.run)
        cards = await self.store.cards_between(self.task.namespace, first, last)
        refs = [ref for card in cards if card.kind in REFERRING and (ref := reference(card))]
        if refs:
            found = await self.store.cards_by_ids(self.task.namespace, refs)
            self._referred = {card.id: card for card in found}
        return {card.id: card for card in cards}

    async def recorded(self, step: str) -> Card | None:
        """The record of one step, if it has one."""
        if self._records is not None and not self._records:
            return None
        return (await self.records()).get(record_id(self.task.id, step))

    async def answered(self, step: str) -> tuple[str, Card | None]:
        """The identity under which a waiting step is known in this turn, and its record.

        What failed in an earlier turn is asked for anew: trying again is what the new turn is for.
        """
        card = await self.recorded(step)
        if card is not None and card.kind != "tool.result":
            raise ReplayMismatch(
                f"step {step!r} has the record of a step, not the answer to a call",
                hint="give the call a new name",
            )
        if card is None or not _failed_before(card, self.task.turn_id):
            return step, card
        again = f"{step}@{self.task.turn_number}"
        return again, await self.recorded(again)

    async def referred(self, record: Card) -> Card:
        """The card with the content that a record points to; read together with the records."""
        return await self.card(reference(record) or "")

    async def card(self, card_id: str) -> Card:
        """One card of this run, or of the task that it points to."""
        found = self._referred.get(card_id)
        if found is None:
            found = await self._until_taken(lambda: self.store.card(self.task.namespace, card_id))
        return found

    def begin(self, name: str, call: str = "") -> str:
        """The identity of the next step of this name: run, branch, name, number.

        An effect whose outcome the agent did not get is the same step when its `call` is asked for again.
        """
        _check_name(name)
        place = f"({BRANCH.get()}){name}"
        if place in self._in_flight:
            raise self._two_at_once(name, place)
        self._in_flight.add(place)
        rejoined = self.runs.rejoined(name, call) if call else None
        if rejoined is not None:
            self._rejoined[rejoined] = place
            return rejoined
        self._numbers[place] += 1
        return f"{self.run}:{place}#{self._numbers[place]}"

    def _two_at_once(self, name: str, place: str) -> AmbiguousStep:
        error = AmbiguousStep(
            f"two steps named {name!r} at once: after a crash nobody could tell which is which",
            hint="give them different names, or run them in the branches of ctx.gather(...)",
        )
        if place in self._waiting:
            self._ambiguous = error
        return error

    def left_by(self, error: BaseException) -> BaseException:
        """What the turn is left by: one that waits for the first of two steps of one name has failed.

        Whoever asked for both at once may have heard only that the first waits.
        """
        return self._ambiguous or error if isinstance(error, Suspended) else error

    def end(self, step: str, call: str = "") -> None:
        """The step is no longer in flight, unless it waits; an effect may still be carried out."""
        place = self._rejoined.pop(step, None) or _place_of(step)
        if place not in self._waiting:
            self._in_flight.discard(place)
        if call:
            branch, _, name = place.removeprefix("(").partition(")")
            self.runs.end_ask(EffectAsk(branch, name, call, step))

    def wait(self, step: str, one: Suspended) -> BaseException:
        """What a verb raises to wait: an error where the branches of the turn would ask with too much.

        Each branch is refused as it comes, so that what they ask with never lies in memory all at once.
        """
        too_much = refuse_too_many(one.calls, self._asking_bytes + one.size)
        if too_much is None:
            self._asking_bytes += one.size
            self._waiting.add(_place_of(step))
        return too_much or one

    def drop_wait(self, one: Suspended) -> None:
        """A branch would wait, but its gather fails."""
        self._asking_bytes -= one.size

    def begin_gather(self) -> str:
        """The path of the next gather of this branch."""
        branch = BRANCH.get()
        place = f"({branch})"
        if place in self._in_flight:
            raise AmbiguousStep(
                "two gathers at once: after a crash nobody could tell which is which",
                hint="put all parts into one ctx.gather(...), or one gather inside another",
            )
        self._in_flight.add(place)
        self._numbers[place] += 1
        return f"{branch},{self._numbers[place]}" if branch else str(self._numbers[place])

    def end_gather(self, path: str, *, has_returned: bool) -> None:
        """The gather is over."""
        branch = path.rpartition(",")[0]
        self._in_flight.discard(f"({branch})")
        self.runs.end_gather(path, is_outermost=not branch, has_returned=has_returned)


def _failed_before(record: Card, turn_id: str | None) -> bool:
    said = msgspec.json.decode(record.content)
    return said["status"] in _FAILED and said.get("turn") != turn_id


def _place_of(step: str) -> str:
    """A step's branch and name, without its number."""
    return step_place(step).rpartition("#")[0]


def reference(record: Card) -> str | None:
    """The card that a record points to, if it does."""
    found: str | None = msgspec.json.decode(record.content).get("ref")
    return found


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or len(name) > NAME_LIMIT or not name.isprintable():
        raise BadInput(
            f"a step's name must be printable text of 1 to {NAME_LIMIT} characters",
            code="bad_step_name",
            field="name",
        )
