"""A child process of an isolated agent: loads the app, carries out one turn and ends.

Its standard input and output are the pipe to the worker. Agent code gets an empty input instead, and what it
prints goes to standard error. The context is the same as inside the worker, on a store that asks the worker.
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
from endwell.external.app_location import load_app
from endwell.external.child_pipe import ChildPipe, RemoteHold, RemoteStore
from endwell.external.child_protocol import LINE_BYTES, TurnOrder, error_message, suspension_message
from endwell.external.runner import MEGABYTE
from endwell.model import content
from endwell.model.task import ErrorInfo
from endwell.runtime.base import Runtime
from endwell.runtime.current import CURRENT_TURN
from endwell.runtime.loops import new_loop
from endwell.runtime.processes import lift_memory_limit, limit_memory
from endwell.runtime.signals import on_stop_signals
from endwell.turn.agents import Agent
from endwell.turn.context import Context, SyncContext
from endwell.turn.directory import Directory
from endwell.turn.endings import error_info, refused_result
from endwell.turn.held_turn import current_turn
from endwell.turn.recorder import LONG_STEP_SECONDS, Recorder, TurnResources
from endwell.turn.suspension import HandedOver, Suspended, capture_outcome, unwrap_group
from endwell.turn.threads import TurnThreads, with_step_threads

_order_decoder = msgspec.json.Decoder(TurnOrder)


def main(order: str) -> None:
    """Load the agent that the order names, report that, and wait for its turn."""
    runtime = Runtime.system()
    pipe = ChildPipe(*_take_over_pipes(), runtime.clock)
    about = json.loads(order)
    try:
        app = load_app(about)
        agent = _find_agent(app, about["agent"])
    except BaseException as error:
        if not isinstance(error, errors.UsageError):
            traceback.print_exc()
        pipe.send_first({"broken": _load_error(error)})
        return
    pipe.send_first({"ready": True})
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(app, agent, pipe, runtime, about["memory_mb"]))


def _take_over_pipes() -> tuple[int, int]:
    """The pipes to the worker, out of reach of what the agent's code prints or starts."""
    pipes = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)
    return pipes


def _find_agent(app: Any, name: str) -> Agent:
    agent = app.agents.get(name)
    if not isinstance(agent, Agent):
        raise errors.UsageError(f"loading the app does not register an agent {name!r}")
    return agent


def _load_error(error: BaseException) -> ErrorInfo:
    kind, text = type(error).__name__, content.safe_str(error, 1_000)
    message = text if isinstance(error, errors.UsageError) else f"loading the app raised {kind}: {text}"
    return ErrorInfo(code="agent_not_loaded", type=kind, message=message)


async def _serve(app: Any, agent: Agent, pipe: ChildPipe, runtime: Runtime, memory_mb: int | None) -> None:
    await pipe.open()
    line = await pipe.read()
    if not line:
        return
    order = _order_decoder.decode(line)
    runtime.spawn(pipe.listen(), "endwell-answers")
    CURRENT_TURN.set(current_turn(order.task))
    turn = ChildTurn(app, agent, pipe, runtime, order)
    await pipe.send_last(await turn.run(None if memory_mb is None else memory_mb * MEGABYTE))
    if app.effects is not None:
        await app.effects.close()


class ChildTurn:
    """One turn, carried out here as the worker would."""

    def __init__(self, app: Any, agent: Agent, pipe: ChildPipe, runtime: Runtime, order: TurnOrder) -> None:
        self._app = app
        self._agent = agent
        self._pipe = pipe
        self._runtime = runtime
        self._order = order

    async def run(self, memory_bytes: int | None) -> bytes:
        """Carry out the turn; the message that says how it ended."""
        try:
            payload = self._agent.checked_payload(content.decode_stored(bytes(self._order.payload)))
            value = await self._call(payload, memory_bytes)
        except BaseException as raised:  # even SystemExit is the turn's failure
            lift_memory_limit()
            return _exception_message(self._agent, unwrap_group(raised))
        lift_memory_limit()
        return _result_message(value)

    async def _call(self, payload: Any, limit: int | None) -> Any:
        recorder = await self._load_recorder() if self._agent.signature.wants_context else None
        try:
            return await self._call_function(recorder, payload, limit)
        except Suspended as waiting:
            raise waiting if recorder is None else recorder.ids.error_of(waiting) from None
        finally:
            if recorder is not None:
                await recorder.runs.close()

    async def _call_function(self, recorder: Recorder | None, payload: Any, limit: int | None) -> Any:
        agent = self._agent
        if not agent.signature.is_async:
            blocking = None if recorder is None else SyncContext(recorder, _verb_waiter(self._runtime))
            arguments = agent.call_arguments(blocking, payload)
            return await self._runtime.in_thread(_call_limited, limit, agent.function, arguments)
        arguments = agent.call_arguments(None if recorder is None else Context(recorder), payload)
        _cancel_on_stop_signal()
        return await _call_limited(limit, agent.function, arguments)

    async def _load_recorder(self) -> Recorder:
        order, runtime, store = self._order, self._runtime, RemoteStore(self._pipe)
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
            RemoteHold(self._pipe, runtime.clock),
            TurnThreads(with_step_threads(runtime), lambda: None),
            actor=order.actor,
            steps=self._agent.step_defaults,
        )
        await recorder.load_records()
        self._runtime.spawn(self._report_steps(recorder), "endwell-doing")
        return recorder

    async def _report_steps(self, recorder: Recorder) -> None:
        """Tell the worker which steps take long: its heartbeat names them."""
        reported: dict[str, int] = {}
        while True:
            await self._runtime.sleep(LONG_STEP_SECONDS)
            if recorder.doing != reported:
                reported = dict(recorder.doing)
                self._pipe.send({"doing": reported})


def _verb_waiter(runtime: Runtime) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """For code in a thread: have the event loop carry out a verb, and block until it has."""
    wait = runtime.make_waiter()

    def wait_for(verb: Coroutine[Any, Any, Any]) -> Any:
        value, error = wait(capture_outcome(verb))
        if error is not None:
            raise error
        return value

    return wait_for


def _cancel_on_stop_signal() -> None:
    """A coroutine that is to be killed is cancelled first, as it would be inside the worker."""
    this = asyncio.current_task()

    def cancel(_: int) -> None:
        if this is not None:
            this.cancel()

    on_stop_signals(asyncio.get_running_loop(), cancel)


def _call_limited(limit: int | None, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Limit the memory where the function runs: a new thread reserves some for itself first."""
    if limit is not None:
        limit_memory(limit)
    return function(*arguments)


def _result_message(value: Any) -> bytes:
    try:
        return b'{"result":%b}' % content.encode(value, what="result")
    except Exception as refusal:
        error = refused_result("result_not_storable", value, refusal, retryable=False)
        return msgspec.json.encode({"error": error})


def _exception_message(agent: Agent, error: BaseException) -> bytes:
    """An exception left the function: the turn waits, it is over, or it failed."""
    match error:
        case Suspended():
            line = msgspec.json.encode({"suspended": suspension_message(error)})
            return line if len(line) < LINE_BYTES else _failure_message(agent, _too_many_waits())
        case HandedOver():
            return msgspec.json.encode({"handed_over": True})
        case errors.StaleAttempt():
            return msgspec.json.encode({"lost": error_message(error)})
    return _failure_message(agent, error)


def _too_many_waits() -> errors.BadInput:
    why = f"this turn would wait and ask with more than {LINE_BYTES:,} bytes at once (in its process)"
    hint = "gather them in several parts, one after the other"
    return errors.BadInput(why, code="too_many_waits", hint=hint)


def _failure_message(agent: Agent, error: BaseException) -> bytes:
    info = error_info(agent, error)
    if isinstance(error, MemoryError):
        info = msgspec.structs.replace(info, code="agent_out_of_memory")
    after = error.after_seconds if isinstance(error, errors.Retry) else None
    return msgspec.json.encode({"error": info, "after": after if isinstance(after, int | float) else None})
