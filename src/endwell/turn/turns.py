"""The turns that a worker holds: each runs beside the others and ends once, in a few commands or in silence.

In silence when the attempt was lost meanwhile: a stale worker has nothing to say. A turn keeps its slot
until all its functions have really ended, and a function in a thread cannot be ended from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from endwell.errors import StaleAttempt
from endwell.model import commands as c
from endwell.model import content
from endwell.model.facts import RETURNED
from endwell.model.inside import deliveries_along, origin_at
from endwell.model.session import EndReason
from endwell.model.task import Task
from endwell.policy.limits import Limits
from endwell.runtime.base import Runtime
from endwell.runtime.current import CURRENT_TURN, CurrentTurn
from endwell.runtime.running_calls import RunningCalls
from endwell.settings.sections import WorkerSettings as WorkerSettings
from endwell.store.contract import Store
from endwell.store.effect_store import EffectStore
from endwell.store.rows import Offer
from endwell.turn import endings
from endwell.turn.agents import Agent
from endwell.turn.captured import captured
from endwell.turn.context import Context, SyncContext
from endwell.turn.directory import Directory
from endwell.turn.recorder import Recorder
from endwell.turn.suspension import GivenBack, HandedOver, Suspended, meant
from endwell.turn.threads import TurnThreads, with_step_threads
from endwell.turn.versions import refuse_other_version

log = logging.getLogger(__name__)

Ending = tuple[c.TaskCommand, ...]
"""What a turn's end is to the store: the tasks that it calls, then the one command that ends it."""
Ended = Callable[[str, Ending], None]
"""Told the attempt of a turn that is over, and what there is to say of it; no attempt when a slot is free."""
LeaseLeft = Callable[[], float]
"""For how many seconds the worker's lease still holds, by its own clock."""


class Turn:
    """One held attempt, and the asyncio task that runs it."""

    __slots__ = (
        "_lease_left",
        "actor",
        "attempt_id",
        "bench",
        "has_begun",
        "is_in_thread",
        "is_lost",
        "is_over",
        "payload",
        "runner",
        "task",
        "threads",
        "verbs",
    )

    def __init__(self, task: Task, payload: bytes, actor: str, lease_left: LeaseLeft) -> None:
        self.task = task
        self.payload = payload
        self.actor = actor
        self.attempt_id = task.attempt_id or ""
        self._lease_left = lease_left
        self.has_begun = False
        self.is_lost = False
        self.is_over = False
        self.is_in_thread = False
        self.bench: Recorder | None = None
        self.threads: TurnThreads | None = None
        self.verbs: set[asyncio.Task[Any] | None] = set()
        self.runner: asyncio.Task[None] | None = None

    def covers(self, seconds: float) -> bool:
        """Whether it stays ours for so long, even if the store is never heard of again."""
        return self.seconds_left >= seconds

    @property
    def seconds_left(self) -> float:
        """For how long it surely stays ours; less than nothing when it is lost."""
        return -1.0 if self.is_lost else self._lease_left()

    async def look(self) -> None:
        """The worker's own clock says what is left of the lease."""

    @property
    def has_threads(self) -> bool:
        """Whether a function of it is in a thread that nobody can end."""
        return self.is_in_thread or (self.threads is not None and self.threads.is_busy)

    def lose(self) -> None:
        """It is no longer ours: stop whatever can be stopped."""
        self.is_lost = True
        for task in (self.runner, *self.verbs):
            if task is not None:
                task.cancel()
        if self.bench is not None:
            self.bench.runs.cancel()


class Turns:
    """Begins turns, and knows which are held. On the worker's event loop, except `held` and `doing`."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        agents: Mapping[str, Agent],
        settings: WorkerSettings,
        limits: Limits,
        *,
        effects: EffectStore | None,
        calls: RunningCalls,
        directory: Directory,
        lease_left: LeaseLeft,
        ended: Ended,
    ) -> None:
        self._store = store
        self._directory = directory
        self._runtime = runtime
        self._step_runtime = with_step_threads(runtime)
        self._agents = agents
        self._settings = settings
        self._limits = limits
        self._effects = effects
        self._calls = calls
        self._lease_left = lease_left
        self._ended = ended
        self._held: dict[str, Turn] = {}

    @property
    def count(self) -> int:
        """How many are held, with functions that go on although their turn is over."""
        return len(self._held)

    def live(self) -> tuple[Turn, ...]:
        """The turns that are still ours."""
        return tuple(turn for turn in list(self._held.values()) if not (turn.is_lost or turn.is_over))

    def held(self) -> tuple[tuple[str, str], ...]:
        """Task and attempt of everything held. The heartbeat's thread asks this."""
        return tuple((turn.task.id, turn.attempt_id) for turn in self.live())

    @property
    def is_at_work(self) -> bool:
        """Whether a turn is held, or an effect's call is in progress that its turn has left."""
        return self.count > 0 or bool(self._calls.in_progress())

    @property
    def end_reason(self) -> EndReason:
        """How the session ends: what is still at work ends with this process, or is in one of its own."""
        if not self.is_at_work:
            return "goodbye"
        return "left_processes" if self._runtime.has_children() else "left"

    def doing(self) -> tuple[tuple[str, str, int], ...]:
        """Attempt, step and since when, of steps that run and of effect calls that their turns have left.

        The heartbeat's thread asks this.
        """
        steps = (
            (turn.attempt_id, step, since)
            for turn in self.live()
            if turn.bench is not None
            for step, since in list(turn.bench.doing.items())
        )
        calls = ((call.attempt_id, call.step, call.since_us) for call in self._calls.in_progress())
        return tuple(dict.fromkeys((*calls, *steps)))  # calls first: of very many only the first are told

    def begin(self, offer: Offer, actor: str) -> None:
        """Run a claimed turn."""
        turn = Turn(offer.task, offer.payload, actor, self._lease_left)
        self._held[turn.attempt_id] = turn
        turn.runner = self._runtime.start(self._run(turn), turn.task.id)

    def abandon(self, attempt_id: str) -> None:
        """The attempt is no longer ours: cancel it and say nothing of how it ends."""
        turn = self._held.get(attempt_id)
        if turn is not None and not (turn.is_lost or turn.is_over):
            turn.lose()
            if not turn.has_begun:  # what is cancelled before its first step never enters its coroutine
                self._over(turn)

    def abandon_all(self) -> None:
        """None of it is ours any more."""
        for attempt_id in list(self._held):
            self.abandon(attempt_id)

    async def _run(self, turn: Turn) -> None:
        turn.has_begun = True
        ending: Ending = ()
        try:
            CURRENT_TURN.set(current_turn(turn.task))
            ending = await self._outcome(turn)
        except Exception as error:  # a defect of ours; the lease keeps the task from being lost
            log.exception("turn of task %s failed: %r", turn.task.id, error)
        finally:
            self._over(turn, ending)

    def _over(self, turn: Turn, ending: Ending = ()) -> None:
        """The turn has ended, once; what it has to say is said at once."""
        if not turn.is_over:
            turn.is_over = True
            self._give_slot_back(turn)
            self._ended(turn.attempt_id, () if turn.is_lost else ending)

    def _thread_ended(self, turn: Turn) -> None:
        if self._give_slot_back(turn):
            self._ended("", ())

    def _give_slot_back(self, turn: Turn) -> bool:
        if not turn.is_over or turn.has_threads:
            return False
        return self._held.pop(turn.attempt_id, None) is not None

    async def _outcome(self, turn: Turn) -> Ending:
        """Whatever the function does, it ends its turn and nothing else."""
        agent = self._agents[turn.task.agent]
        # an attempt ends once, so its id names its end too
        about = (turn.task, turn.attempt_id, f"{turn.attempt_id}.end", turn.actor)
        try:
            refuse_other_version(agent, turn.task)
            try:
                value = await self._call(agent, turn)
            finally:
                if turn.bench is not None:
                    await turn.bench.runs.close()
        except BaseException as raised:  # SystemExit too is an agent's failure, not the worker's end
            error = meant(raised)
            error = error if turn.bench is None else turn.bench.left_by(error)
            turn.is_lost = turn.is_lost or isinstance(error, StaleAttempt | HandedOver)
            if turn.is_lost:
                return ()
            if isinstance(error, Suspended):
                return endings.suspend(*about, error)
            if isinstance(error, GivenBack):
                return (endings.hand_back(*about, reason=RETURNED),)
            return (endings.fail(*about, agent, error, self._runtime.ids.fraction()),)
        return (endings.finish(*about, agent, value, self._runtime.ids.fraction()),)

    async def _call(self, agent: Agent, turn: Turn) -> Any:
        """What the function returns. A payload is read where it runs: its type's patterns may take long."""
        if agent.outside is not None:
            return await agent.outside.run(self._new_bench(agent, turn), turn)
        payload = agent.checked_payload(content.decode_stored(turn.payload))
        bench = await self._bench(agent, turn) if agent.signature.wants_context else None
        if agent.signature.is_async:
            context = None if bench is None else Context(bench)
            return await agent.function(*agent.arguments(context, payload))
        blocking = None if bench is None else SyncContext(bench, self._waiter(turn))
        loop = asyncio.get_running_loop()
        return await self._runtime.in_thread(
            self._in_thread, loop, turn, agent.function, agent.arguments(blocking, payload)
        )

    async def _bench(self, agent: Agent, turn: Turn) -> Recorder:
        """With all records of the run, read in one question."""
        bench = self._new_bench(agent, turn)
        await bench.records()
        return bench

    def _new_bench(self, agent: Agent, turn: Turn) -> Recorder:
        turn.threads = TurnThreads(self._step_runtime, lambda: self._thread_ended(turn))
        turn.bench = Recorder(
            turn.task,
            turn,
            actor=turn.actor,
            store=self._store,
            runtime=self._runtime,
            settings=self._settings,
            limits=self._limits,
            threads=turn.threads,
            step_timeout=agent.step_timeout,
            give_up_on=agent.give_up_on,
            effects=self._effects,
            calls=self._calls,
            directory=self._directory,
        )
        return turn.bench

    def _waiter(self, turn: Turn) -> Callable[[Coroutine[Any, Any, Any]], Any]:
        """For code in a thread: have the event loop carry out a verb, and block until it has."""
        wait = self._runtime.make_waiter()

        def waited(verb: Coroutine[Any, Any, Any]) -> Any:
            if turn.is_lost:
                verb.close()
                raise _lost(turn)
            value, error = wait(_verb(turn, verb))
            if error is not None:
                raise error
            return value

        return waited

    def _in_thread(
        self,
        loop: asyncio.AbstractEventLoop,
        turn: Turn,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
    ) -> Any:
        """Runs in the thread. First the mark, then the look: either we see the loss, or `_over` sees us."""
        turn.is_in_thread = True
        try:
            if turn.is_lost:
                raise _lost(turn)
            return function(*arguments)
        except GeneratorExit as error:  # would close the coroutine that waits for it
            raise RuntimeError("the function raised GeneratorExit") from error
        finally:
            turn.is_in_thread = False
            if turn.is_lost:
                with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
                    loop.call_soon_threadsafe(self._thread_ended, turn)


async def _verb(turn: Turn, verb: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """A verb that a thread waits for; a turn that is lost takes it along."""
    task = asyncio.current_task()
    turn.verbs.add(task)
    try:
        value, error = await captured(verb)
    finally:
        turn.verbs.discard(task)
    return value, _lost(turn) if turn.is_lost and error is not None else error


def current_turn(task: Task) -> CurrentTurn:
    """What the code of a turn is known by."""
    attempt_id = task.attempt_id or ""
    return CurrentTurn(task.id, attempt_id, task.namespace, deliveries_along(task), origin_at(task))


def _lost(turn: Turn) -> StaleAttempt:
    return StaleAttempt(f"attempt {turn.attempt_id} no longer holds its task", task_id=turn.task.id)
