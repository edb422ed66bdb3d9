"""The other side of `isolated.py`: a process that loads the app, carries out one turn and ends.

Its standard input and output belong to the conversation with the worker. Agent code gets an empty input
instead, and what it prints goes to standard error. The context is the same as inside the worker, on a
recorder whose store is the worker's.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from endwell import errors
from endwell.external.app_location import load
from endwell.external.child_pipe import LINE_BYTES, ChildPipe, Leased
from endwell.external.remote_store import RemoteStore, error_said, waiting_said
from endwell.external.runner import MEGABYTE
from endwell.model import content
from endwell.model.task import ErrorInfo, Task
from endwell.policy.limits import Limits
from endwell.runtime.base import Runtime
from endwell.runtime.current import CURRENT_TURN
from endwell.runtime.loops import new_loop
from endwell.runtime.processes import lift_memory_limit, limit_memory
from endwell.runtime.signals import on_stop_signals
from endwell.settings.sections import ApprovalSettings as ApprovalSettings
from endwell.settings.sections import WorkerSettings as WorkerSettings
from endwell.turn.agents import Agent
from endwell.turn.context import Context, SyncContext
from endwell.turn.directory import Directory
from endwell.turn.endings import error_info, refused_result
from endwell.turn.held_turn import current_turn
from endwell.turn.recorder import LONG_STEP_SECONDS, Recorder, TurnResources
from endwell.turn.suspension import HandedOver, Suspended, captured, unwrapped
from endwell.turn.threads import TurnThreads, with_step_threads


class TurnOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One turn, and what its worker knows that is needed to carry it out."""

    task: Task
    actor: str
    settings: WorkerSettings
    limits: Limits
    approval: ApprovalSettings
    payload: msgspec.Raw


_order_decoder = msgspec.json.Decoder(TurnOrder)


def main(order: str) -> None:
    """Load the agent that the order names, say so, and wait for its turn."""
    runtime = Runtime.system()
    link = ChildPipe(*_taken_over(), runtime.clock)
    about = json.loads(order)
    try:
        app = load(about)
        agent = _found(app, about["agent"])
    except BaseException as error:
        if not isinstance(error, errors.UsageError):
            traceback.print_exc()
        link.say_first({"broken": _broken(error)})
        return
    link.say_first({"ready": True})
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(app, agent, link, runtime, about["memory_mb"]))


def _taken_over() -> tuple[int, int]:
    """The pipes to the worker, out of reach of whatever the agent's code prints or starts."""
    pipes = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)
    return pipes


def _found(app: Any, name: str) -> Agent:
    agent = app.agents.get(name)
    if not isinstance(agent, Agent):
        raise errors.UsageError(f"loading the app does not register an agent {name!r}")
    return agent


def _broken(error: BaseException) -> ErrorInfo:
    kind, text = type(error).__name__, content.safe_str(error, 1_000)
    message = text if isinstance(error, errors.UsageError) else f"loading the app raised {kind}: {text}"
    return ErrorInfo(code="agent_not_loaded", type=kind, message=message)


async def _serve(app: Any, agent: Agent, link: ChildPipe, runtime: Runtime, memory_mb: int | None) -> None:
    await link.open()
    line = await link.read()
    if not line:
        return
    order = _order_decoder.decode(line)
    runtime.spawn(link.listen(), "endwell-answers")
    CURRENT_TURN.set(current_turn(order.task))
    turn = ChildTurn(app, agent, link, runtime, order)
    await link.say_last(await turn.last_word(None if memory_mb is None else memory_mb * MEGABYTE))
    if app.effects is not None:
        await app.effects.close()


class ChildTurn:
    """One turn, carried out here as the worker would."""

    def __init__(self, app: Any, agent: Agent, link: ChildPipe, runtime: Runtime, order: TurnOrder) -> None:
        self._app = app
        self._agent = agent
        self._link = link
        self._runtime = runtime
        self._order = order

    async def last_word(self, memory_bytes: int | None) -> bytes:
        """How the turn ended, as the worker is told."""
        try:
            payload = self._agent.checked_payload(content.decode_stored(bytes(self._order.payload)))
            value = await self._called(payload, memory_bytes)
        except BaseException as raised:  # whatever it is, it is the turn's failure
            lift_memory_limit()
            return _left(self._agent, unwrapped(raised))
        lift_memory_limit()
        return _succeeded(value)

    async def _called(self, payload: Any, limit: int | None) -> Any:
        agent = self._agent
        recorder = await self._recorder() if agent.signature.wants_context else None
        try:
            return await self._with(recorder, payload, limit)
        except Suspended as waiting:
            raise waiting if recorder is None else recorder.ids.error_of(waiting) from None
        finally:
            if recorder is not None:
                await recorder.runs.close()

    async def _with(self, recorder: Recorder | None, payload: Any, limit: int | None) -> Any:
        agent = self._agent
        if not agent.signature.is_async:
            blocking = None if recorder is None else SyncContext(recorder, _waiter(self._runtime))
            arguments = agent.arguments(blocking, payload)
            return await self._runtime.in_thread(_limited, limit, agent.function, arguments)
        arguments = agent.arguments(None if recorder is None else Context(recorder), payload)
        _let_clean_up()
        return await _limited(limit, agent.function, arguments)

    async def _recorder(self) -> Recorder:
        """With all records of the run, read in one question."""
        order, runtime, store = self._order, self._runtime, RemoteStore(self._link.ask)
        resources = TurnResources(
            store=store,
            runtime=runtime,
            settings=order.settings,
            limits=order.limits,
            directory=Directory(store, order.task.namespace, self._app.agents, order.approval),
            calls=self._app.calls,
            effects=self._app.effects,
        )
        recorder = Recorder(
            resources,
            order.task,
            Leased(self._link, runtime.clock),
            TurnThreads(with_step_threads(runtime), lambda: None),
            actor=order.actor,
            steps=self._agent.steps,
        )
        await recorder.load_records()
        self._runtime.spawn(self._tell(recorder), "endwell-doing")
        return recorder

    async def _tell(self, recorder: Recorder) -> None:
        """Which steps take long: the worker's heartbeat tells everybody."""
        told: dict[str, int] = {}
        while True:
            await self._runtime.sleep(LONG_STEP_SECONDS)
            if recorder.doing != told:
                told = dict(recorder.doing)
                self._link.say({"doing": told})


def _waiter(runtime: Runtime) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """For code in a thread: have the event loop carry out a verb, and block until it has."""
    wait = runtime.make_waiter()

    def waited(verb: Coroutine[Any, Any, Any]) -> Any:
        value, error = wait(captured(verb))
        if error is not None:
            raise error
        return value

    return waited


def _let_clean_up() -> None:
    """A coroutine that is to be killed is cancelled first, as it would be inside the worker."""
    this = asyncio.current_task()

    def cancel(_: int) -> None:
        if this is not None:
            this.cancel()

    on_stop_signals(asyncio.get_running_loop(), cancel)


def _limited(limit: int | None, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Limit the memory where the function runs: a new thread reserves some for itself first."""
    if limit is not None:
        limit_memory(limit)
    return function(*arguments)


def _succeeded(value: Any) -> bytes:
    try:
        return b'{"result":%b}' % content.encode(value, what="result")
    except Exception as refusal:
        return msgspec.json.encode(
            {"error": refused_result("result_not_storable", value, refusal, retryable=False)}
        )


def _left(agent: Agent, error: BaseException) -> bytes:
    """The function was left by an exception: it waits, it is over, or it failed."""
    match error:
        case Suspended():
            line = msgspec.json.encode({"suspended": waiting_said(error)})
            return line if len(line) < LINE_BYTES else _failed(agent, _too_much())
        case HandedOver():
            return msgspec.json.encode({"handed_over": True})
        case errors.StaleAttempt():
            return msgspec.json.encode({"lost": error_said(error)})
    return _failed(agent, error)


def _too_much() -> errors.BadInput:
    why = f"this turn would wait and ask with more than {LINE_BYTES:,} bytes at once (in its process)"
    hint = "gather them in several parts, one after the other"
    return errors.BadInput(why, code="too_many_waits", hint=hint)


def _failed(agent: Agent, error: BaseException) -> bytes:
    info = error_info(agent, error)
    if isinstance(error, MemoryError):
        info = msgspec.structs.replace(info, code="agent_out_of_memory")
    after = error.after_seconds if isinstance(error, errors.Retry) else None
    return msgspec.json.encode({"error": info, "after": after if isinstance(after, int | float) else None})
