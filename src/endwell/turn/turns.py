"""The turns that a worker holds, one attempt of each: they run beside each other, and each attempt ends once.

A turn whose attempt has lost the task sends no command. A turn keeps its slot until all its functions have
returned: a function in a thread cannot be ended from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from endwell.errors import StaleAttempt
from endwell.machine.decision import stale_attempt
from endwell.model import content
from endwell.model.commands import TaskCommand
from endwell.model.facts import RETURNED
from endwell.model.session import EndReason
from endwell.runtime.current import CURRENT_TURN
from endwell.store.rows import Offer
from endwell.turn import endings
from endwell.turn.agents import Agent
from endwell.turn.context import Context, SyncContext
from endwell.turn.endings import EndedTurn, LostTurn, SlotFreed, TurnEnd
from endwell.turn.held_turn import HeldTurn, LeaseLeft, current_turn
from endwell.turn.recorder import Recorder, TurnResources
from endwell.turn.suspension import GivenBack, HandedOver, Outcome, Suspended, capture_outcome, unwrap_group
from endwell.turn.threads import TurnThreads, with_step_threads

log = logging.getLogger(__name__)


class Turns:
    """Begins turns and knows which are held."""

    def __init__(
        self,
        resources: TurnResources,
        agents: Mapping[str, Agent],
        *,
        lease_left: LeaseLeft,
        on_end: Callable[[TurnEnd], None],
    ) -> None:
        self._resources = resources
        self._runtime = resources.runtime
        self._step_runtime = with_step_threads(resources.runtime)
        self._agents = agents
        self._calls = resources.calls
        self._lease_left = lease_left
        self._on_end = on_end
        self._held: dict[str, HeldTurn] = {}

    @property
    def slots_taken(self) -> int:
        """How many slots are taken, also by functions that outlive their turn."""
        return len(self._held)

    def live_turns(self) -> tuple[HeldTurn, ...]:
        """The turns that run and are not lost."""
        return tuple(turn for turn in list(self._held.values()) if not (turn.is_lost or turn.is_over))

    def held_attempts(self) -> tuple[tuple[str, str], ...]:
        """Task and attempt of each live turn. The heartbeat's thread calls this."""
        return tuple((turn.task.id, turn.attempt_id) for turn in self.live_turns())

    @property
    def is_busy(self) -> bool:
        """Whether a turn is held, or a call of an effect has outlived its turn."""
        return self.slots_taken > 0 or bool(self._calls.in_progress())

    @property
    def end_reason(self) -> EndReason:
        """How the session ends: what still runs ends with this process, or runs in processes of its own."""
        if not self.is_busy:
            return "goodbye"
        return "left_processes" if self._runtime.has_children() else "left"

    def running_steps(self) -> tuple[tuple[str, str, int], ...]:
        """Attempt, step and start of each running step, and of effect calls that outlive their turns.

        The heartbeat's thread calls this. Calls come first: the heartbeat may drop the end of the list.
        """
        steps = (
            (turn.attempt_id, step, since)
            for turn in self.live_turns()
            if turn.recorder is not None
            for step, since in list(turn.recorder.doing.items())
        )
        calls = ((call.attempt_id, call.step, call.since_us) for call in self._calls.in_progress())
        return tuple(dict.fromkeys((*calls, *steps)))

    def begin(self, offer: Offer, actor: str) -> None:
        turn = HeldTurn(offer.task, offer.payload, actor, self._lease_left)
        self._held[turn.attempt_id] = turn
        turn.runner = self._runtime.start(self._run(turn), turn.task.id)

    def abandon(self, attempt_id: str) -> None:
        """The attempt has lost its task: cancel its turn, which then sends no command."""
        turn = self._held.get(attempt_id)
        if turn is not None and not (turn.is_lost or turn.is_over):
            turn.mark_lost()
            if not turn.has_begun:  # a coroutine that is cancelled before it starts never runs
                self._end(turn, LostTurn(attempt_id))

    def abandon_all(self) -> None:
        for attempt_id in list(self._held):
            self.abandon(attempt_id)

    async def _run(self, turn: HeldTurn) -> None:
        turn.has_begun = True
        end: EndedTurn | LostTurn = LostTurn(turn.attempt_id)
        try:
            CURRENT_TURN.set(current_turn(turn.task))
            end = await self._run_function(turn)
        except Exception as error:  # a defect of Endwell; no heartbeat names the turn, so it is reclaimed
            log.exception("turn of task %s failed: %r", turn.task.id, error)
        finally:
            self._end(turn, LostTurn(turn.attempt_id) if turn.is_lost else end)

    def _end(self, turn: HeldTurn, end: EndedTurn | LostTurn) -> None:
        """Report the end of a turn, once."""
        if not turn.is_over:
            turn.is_over = True
            self._free_slot(turn)
            self._on_end(end)

    def _on_thread_end(self, turn: HeldTurn) -> None:
        if self._free_slot(turn):
            self._on_end(SlotFreed())

    def _free_slot(self, turn: HeldTurn) -> bool:
        if not turn.is_over or turn.has_threads:
            return False
        return self._held.pop(turn.attempt_id, None) is not None

    async def _run_function(self, turn: HeldTurn) -> EndedTurn | LostTurn:
        """Run the agent's function; nothing that it raises leaves this method."""
        agent = self._agents[turn.task.agent]
        fraction = self._runtime.ids.fraction
        try:
            agent.refuse_other_version(turn.task)
            try:
                value = await self._call(agent, turn)
            finally:
                if turn.recorder is not None:
                    await turn.recorder.runs.close()
        except BaseException as raised:  # SystemExit too is an agent's failure, not the worker's end
            error = unwrap_group(raised)
            if turn.recorder is not None:
                error = turn.recorder.ids.error_of(error)
            turn.is_lost = turn.is_lost or isinstance(error, StaleAttempt | HandedOver)
            if turn.is_lost:
                return LostTurn(turn.attempt_id)
            if isinstance(error, Suspended):
                return EndedTurn(turn.task.id, turn.attempt_id, endings.suspend(turn, error))
            if isinstance(error, GivenBack):
                command: TaskCommand = endings.hand_back(turn, reason=RETURNED)
            else:
                command = endings.fail(turn, agent, error, fraction())
        else:
            command = endings.finish(turn, agent, value, fraction())
        return EndedTurn(turn.task.id, turn.attempt_id, (command,))

    async def _call(self, agent: Agent, turn: HeldTurn) -> Any:
        """What the function returns. Its payload is checked here, as the patterns of a type may take long."""
        if agent.outside is not None:
            return await agent.outside.run(self._new_recorder(agent, turn), turn)
        payload = agent.checked_payload(content.decode_stored(turn.payload))
        recorder = self._new_recorder(agent, turn) if agent.signature.wants_context else None
        if recorder is not None:
            await recorder.load_records()
        if agent.signature.is_async:
            context = None if recorder is None else Context(recorder)
            return await agent.function(*agent.call_arguments(context, payload))
        blocking = None if recorder is None else SyncContext(recorder, self._verb_waiter(turn))
        loop = asyncio.get_running_loop()
        return await self._runtime.in_thread(
            self._run_in_thread, loop, turn, agent.function, agent.call_arguments(blocking, payload)
        )

    def _new_recorder(self, agent: Agent, turn: HeldTurn) -> Recorder:
        turn.threads = TurnThreads(self._step_runtime, lambda: self._on_thread_end(turn))
        turn.recorder = Recorder(
            self._resources, turn.task, turn, turn.threads, actor=turn.actor, steps=agent.step_defaults
        )
        return turn.recorder

    def _verb_waiter(self, turn: HeldTurn) -> Callable[[Coroutine[Any, Any, Any]], Any]:
        """For code in a thread: have the event loop carry out a verb, and block until it has."""
        wait = self._runtime.make_waiter()

        def wait_for(verb: Coroutine[Any, Any, Any]) -> Any:
            if turn.is_lost:
                verb.close()
                raise stale_attempt(turn.task, turn.attempt_id)
            value, error = wait(_run_verb(turn, verb))
            if error is not None:
                raise error
            return value

        return wait_for

    def _run_in_thread(
        self,
        loop: asyncio.AbstractEventLoop,
        turn: HeldTurn,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
    ) -> Any:
        """Call the function in its thread.

        `is_in_thread` is set before `is_lost` is read: this sees the loss, or `_free_slot` the thread.
        """
        turn.is_in_thread = True
        try:
            if turn.is_lost:
                raise stale_attempt(turn.task, turn.attempt_id)
            return function(*arguments)
        except GeneratorExit as error:  # else it would close the coroutine that waits
            raise RuntimeError("the function raised GeneratorExit") from error
        finally:
            turn.is_in_thread = False
            if turn.is_lost:
                with contextlib.suppress(RuntimeError):  # the loop has closed
                    loop.call_soon_threadsafe(self._on_thread_end, turn)


async def _run_verb(turn: HeldTurn, verb: Coroutine[Any, Any, Any]) -> Outcome:
    """Carry out a verb that a thread waits for; losing the turn cancels it."""
    task = asyncio.current_task()
    turn.verbs.add(task)
    try:
        value, error = await capture_outcome(verb)
    finally:
        turn.verbs.discard(task)
    return value, stale_attempt(turn.task, turn.attempt_id) if turn.is_lost and error is not None else error
