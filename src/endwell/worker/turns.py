"""The turns that a worker holds: each runs beside the others and ends in exactly one command, or in silence.

In silence when the attempt was lost meanwhile: a stale worker has nothing to say. A turn keeps its slot
until its function has really ended, and a function in a thread cannot be ended from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from endwell.errors import StaleAttempt, StoreError
from endwell.model import commands as c
from endwell.model import content
from endwell.model.task import Task
from endwell.runtime.base import Runtime
from endwell.runtime.current import CURRENT_TURN
from endwell.store.rows import Offer
from endwell.worker import endings
from endwell.worker.agents import Agent
from endwell.worker.context import Context, SyncContext

log = logging.getLogger(__name__)

PROGRESS_PAUSE_SECONDS = 0.2
"""How long a sign of progress waits before a store that failed is told again."""

Commit = Callable[[c.Command], Awaitable[object]]
Ended = Callable[[c.AttemptCommand | None], None]


class Turn:
    """One held attempt, and the task that runs it."""

    __slots__ = ("actor", "attempt_id", "is_in_thread", "is_lost", "payload", "runner", "task")

    def __init__(self, task: Task, payload: bytes, actor: str) -> None:
        self.task = task
        self.payload = payload
        self.actor = actor
        self.attempt_id = task.attempt_id or ""
        self.is_lost = False
        self.is_in_thread = False
        self.runner: asyncio.Task[None] | None = None


class Turns:
    """Begins turns, and knows which are held. Called on the worker's event loop, except `held`."""

    def __init__(self, runtime: Runtime, agents: Mapping[str, Agent], commit: Commit, ended: Ended) -> None:
        self._runtime = runtime
        self._agents = agents
        self._commit = commit
        self._ended = ended
        self._held: dict[str, Turn] = {}

    @property
    def count(self) -> int:
        """How many slots are taken, also by functions that go on although their turn was lost."""
        return len(self._held)

    def live(self) -> tuple[Turn, ...]:
        """The turns that are still ours."""
        return tuple(turn for turn in list(self._held.values()) if not turn.is_lost)

    def held(self) -> tuple[tuple[str, str], ...]:
        """Task and attempt of everything held. The heartbeat's thread asks this."""
        return tuple((turn.task.id, turn.attempt_id) for turn in self.live())

    def begin(self, offer: Offer, actor: str) -> None:
        """Run a claimed turn."""
        turn = Turn(offer.task, offer.payload, actor)
        self._held[turn.attempt_id] = turn
        turn.runner = self._runtime.spawn(self._run(turn), turn.task.id)
        # A task that is cancelled before its first step never enters its coroutine.
        turn.runner.add_done_callback(lambda _: self._over(turn))

    def abandon(self, attempt_id: str) -> None:
        """The attempt is no longer ours: cancel it and say nothing of how it ends."""
        turn = self._held.get(attempt_id)
        if turn is not None and not turn.is_lost:
            turn.is_lost = True
            if turn.runner is not None:
                turn.runner.cancel()

    def abandon_all(self) -> None:
        """None of it is ours any more."""
        for attempt_id in list(self._held):
            self.abandon(attempt_id)

    async def _run(self, turn: Turn) -> None:
        CURRENT_TURN.set((turn.task.id, turn.attempt_id))
        self._over(turn, await self._outcome(turn))

    def _over(self, turn: Turn, ending: c.AttemptCommand | None = None) -> None:
        """Give the slot back, once; a function still in its thread gives it back when it returns."""
        if not turn.is_in_thread and self._held.pop(turn.attempt_id, None) is not None:
            self._ended(None if turn.is_lost else ending)

    async def _outcome(self, turn: Turn) -> c.AttemptCommand | None:
        """Whatever the function does, it ends its turn and nothing else."""
        agent = self._agents[turn.task.agent]
        try:
            payload = agent.checked_payload(content.decode_stored(turn.payload))
            value = await self._call(agent, turn, payload)
        except StaleAttempt:
            turn.is_lost = True
            return None
        except BaseException as error:  # SystemExit and the like are an agent's failure, not the worker's end
            if turn.is_lost:
                return None
            fraction = self._runtime.ids.fraction()
            return endings.fail(
                turn.task, turn.attempt_id, self._runtime.ids.new(), turn.actor, agent, error, fraction
            )
        fraction = self._runtime.ids.fraction()
        return endings.finish(
            turn.task, turn.attempt_id, self._runtime.ids.new(), turn.actor, agent, value, fraction
        )

    async def _call(self, agent: Agent, turn: Turn, payload: Any) -> Any:
        if agent.signature.is_async:
            context = Context(**self._about(turn)) if agent.signature.wants_context else None
            return await agent.function(*agent.arguments(context, payload))
        wait = self._runtime.waiter()
        blocking = SyncContext(wait=wait, **self._about(turn)) if agent.signature.wants_context else None
        loop = asyncio.get_running_loop()
        return await self._runtime.in_thread(
            self._in_thread, loop, turn, agent.function, agent.arguments(blocking, payload)
        )

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
                raise StaleAttempt(f"attempt {turn.attempt_id} was lost before it began")
            return function(*arguments)
        except GeneratorExit as error:  # would close the coroutine that waits for it
            raise RuntimeError("the function raised GeneratorExit") from error
        finally:
            turn.is_in_thread = False
            if turn.is_lost:
                with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
                    loop.call_soon_threadsafe(self._over, turn)

    def _about(self, turn: Turn) -> dict[str, Any]:
        task = turn.task
        return {
            "task_id": task.id,
            "attempt_id": turn.attempt_id,
            "agent": task.agent,
            "agent_key": task.agent_key,
            "idempotency_key": task.idempotency_key,
            "retry_count": task.retry_count,
            "say": lambda note: self._progress(turn, note),
        }

    async def _progress(self, turn: Turn, note: str | None) -> None:
        """A store that is away for a moment is no fault of the agent's: it is told when it is back."""
        command = self._sign_of_progress(turn, note)
        while not turn.is_lost:
            try:
                await self._commit(command)
                return
            except StoreError as error:
                log.warning("progress of task %s must wait: %s", turn.task.id, error.message)
                await self._runtime.sleep(PROGRESS_PAUSE_SECONDS)
        raise StaleAttempt(f"attempt {turn.attempt_id} no longer holds its task", task_id=turn.task.id)

    def _sign_of_progress(self, turn: Turn, note: str | None) -> c.Progress:
        return c.Progress(
            command_id=self._runtime.ids.new(),
            namespace=turn.task.namespace,
            actor=turn.actor,
            task_id=turn.task.id,
            attempt_id=turn.attempt_id,
            note=None if note is None else content.clean_text(content.safe_str(note), 500),
        )
