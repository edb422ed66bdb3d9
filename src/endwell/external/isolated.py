"""Agent functions in a process of their own, which can be killed when they are stuck or use too much memory.

The child is a fresh interpreter that loads the app again (`child.py`), carries out one turn and ends. What
both sides say is in `child_protocol.py`. The child is not trusted: `gateway.py` checks what it asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, cast

import msgspec

from endwell.errors import EndwellError, Refused, UsageError
from endwell.external.app_location import location_of
from endwell.external.child_protocol import (
    IN_FLIGHT,
    LINE_BYTES,
    REQUEST_BYTES,
    UNREADABLE,
    ChildOutput,
    ChildRequest,
    TurnOrder,
    error_message,
)
from endwell.external.command_checks import child_error, clean_doing
from endwell.external.gateway import Gateway, is_refusal
from endwell.external.runner import (
    GRACE_SECONDS,
    BadOutput,
    checked_memory,
    checked_seconds,
    listen,
    outside_failure,
)
from endwell.model.content import MAX_BYTES
from endwell.model.task import ErrorInfo
from endwell.runtime.base import Runtime
from endwell.runtime.guarded_program import (
    GuardedProgram,
    LineTooLong,
    ProgramEnd,
    ProgramNotStarted,
    start_guarded,
)
from endwell.turn.held_turn import HeldTurn, ReportedFailure
from endwell.turn.recorder import Recorder
from endwell.turn.suspension import GivenBack, HandedOver

LOAD_SECONDS = 120.0
"""How long a child may take to load the app."""
LEAVE_SECONDS = 5.0
"""How long a child may take to end after its last line."""
MAX_AFTER_BYTES: Final = 1000
"""A longer text is no number of seconds."""
_ONE_HEAP: Final = {"MALLOC_ARENA_MAX": "1"}
"""Otherwise the C library sets some of a memory limit aside for each thread, so for each step."""
_BOOT: Final = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from endwell.external.child import main; main(sys.argv[1])"
)

_output_decoder = msgspec.json.Decoder(ChildOutput)
_request_decoder = msgspec.json.Decoder(ChildRequest)


@dataclasses.dataclass(kw_only=True)
class Isolated:
    """One agent's children: one per turn, and a spare that has already loaded the app."""

    app: object
    agent: str
    function: Callable[..., Any]
    runtime: Runtime
    timeout: float | None = None
    memory_mb: int | None = None
    _spare: asyncio.Task[GuardedProgram] | None = None

    async def prepare(self) -> None:
        """Load the app in a child, which stays as the spare: what cannot work is refused now."""
        try:
            child = await self._take_child()
        except ReportedFailure as broken:
            problem = f"agent {self.agent!r} cannot run in a process of its own: {broken.info.message}"
            raise UsageError(problem, hint="register it at the top level of a module") from None
        self._spare = self.runtime.spawn(_already_loaded(child), f"endwell-spare-{self.agent}")

    async def run(self, recorder: Recorder, turn: HeldTurn) -> Any:
        """One turn in one child, which is gone when this returns, however it does."""
        async with await self._take_child() as child:
            child.limit_time(float("inf") if self.timeout is None else self.timeout)
            child.write(_order_line(turn, recorder))
            if self._spare is None:
                self._spare = self.runtime.spawn(self._load_child(), f"endwell-spare-{self.agent}")
            return await ChildConversation(self, child, turn, recorder).result()

    async def close(self) -> None:
        """End the spare."""
        spare = self._take_spare()
        if spare is not None:
            spare.cancel()
            await asyncio.wait([spare])
            if not spare.cancelled() and spare.exception() is None:
                await spare.result().close()

    async def _take_child(self) -> GuardedProgram:
        """The spare, as soon as it is loaded, if there is a good one; else a new child."""
        spare = self._take_spare()
        if spare is not None:
            child = await spare
            if not child.is_over:
                return child
            await child.close()
        return await self._load_child()

    def _take_spare(self) -> asyncio.Task[GuardedProgram] | None:
        """The spare, taken so that no other turn gets it; one of another event loop is useless here."""
        spare, self._spare = self._spare, None
        return spare if spare is not None and spare.get_loop() is asyncio.get_running_loop() else None

    async def _load_child(self) -> GuardedProgram:
        location = location_of(self.app, self.function, self.agent)
        order = json.dumps({**location, "agent": self.agent, "memory_mb": self.memory_mb})
        argv = [sys.executable, "-P", "-c", _BOOT, order, json.dumps(sys.path)]
        try:
            child = await start_guarded(
                argv,
                env=None if self.memory_mb is None else {**os.environ, **_ONE_HEAP},
                line_limit=LINE_BYTES,
                grace_seconds=GRACE_SECONDS,
                on_stderr=_copy_to_stderr,
            )
        except ProgramNotStarted as error:
            raise outside_failure("agent_not_loaded", f"no process could be started: {error}") from None
        try:
            child.limit_time(LOAD_SECONDS)
            first = await _first_output(child)
            if bytes(first.ready) != b"true":
                raise await self._not_loaded(child, first)
        except BaseException:
            await child.close()
            raise
        return child

    async def _not_loaded(self, child: GuardedProgram, first: ChildOutput) -> ReportedFailure:
        with contextlib.suppress(*UNREADABLE):
            return ReportedFailure(child_error(msgspec.json.decode(first.broken, type=ErrorInfo)))
        child.stop()
        return outside_failure(
            "agent_not_loaded", f"its process {await child.wait_ended()} while loading", child.error_tail
        )


class ChildConversation:
    """Answers a child's requests during its turn, until it says how the turn ended."""

    def __init__(self, isolated: Isolated, child: GuardedProgram, turn: HeldTurn, recorder: Recorder) -> None:
        self._isolated = isolated
        self._child = child
        self._turn = turn
        self._recorder = recorder
        self._gateway = Gateway(recorder)
        self._last = ChildOutput()
        self._answering: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._cards = asyncio.Lock()
        self._raised: BaseException | None = None

    async def result(self) -> Any:
        """The function's result; what left the function instead is raised."""
        try:
            problem = await listen(self._child, self._on_line)
            self._child.limit_time(LEAVE_SECONDS)
            ended = await self._child.wait_ended()
        finally:
            for answering in self._answering:
                answering.cancel()
        if self._raised is not None:
            raise self._raised
        if isinstance(problem, BadOutput):
            raise _unreadable_output(problem)
        if self._last.result:
            return self._decode_result(self._last.result, ended)
        raise await self._error(self._last) or self._death_failure(ended)

    async def _on_line(self, line: bytes) -> bool:
        """Handle one line. The line that says how the turn ended is the last."""
        output = _decode_output(line)
        if not output.doing and not output.ask:
            self._last = output
            return True
        if len(line) > REQUEST_BYTES:
            raise BadOutput(f"a request of more than {REQUEST_BYTES:,} bytes")
        try:
            if output.doing:
                self._recorder.doing = clean_doing(output.doing)
            else:
                await self._slots.acquire()
                self._begin_answer(_request_decoder.decode(line))
        except UNREADABLE as error:
            raise BadOutput(str(error)) from None
        return False

    def _decode_result(self, result: msgspec.Raw, ended: ProgramEnd) -> Any:
        if len(result) > MAX_BYTES:
            raise outside_failure("result_not_storable", f"its result has more than {MAX_BYTES:,} bytes")
        try:
            return msgspec.json.decode(result)
        except UNREADABLE:
            raise self._death_failure(ended) from None

    async def _error(self, last: ChildOutput) -> BaseException | None:
        """What left the agent's function, as it would have inside the worker; the child is not believed."""
        try:
            if last.suspended:
                return await self._gateway.checked_suspension(last.suspended)
            if last.handed_over and self._gateway.is_handed_over:
                return HandedOver("the task is in a person's hands")
            if last.lost:  # it could not see that the lease holds; a deceitful child gains nothing by it
                return GivenBack("its process gave the turn back")
            if last.error:
                info = child_error(msgspec.json.decode(last.error, type=ErrorInfo))
                after = last.after if 0 < len(last.after) < MAX_AFTER_BYTES else b"null"
                return ReportedFailure(info, msgspec.json.decode(after))
        except UNREADABLE as error:
            return _unreadable_output(error)
        except Refused as refusal:
            return outside_failure(refusal.code, refusal.message)
        if last.handed_over:
            return outside_failure("agent_gave_turn_up", "its process left its turn, which it still held")
        return None

    def _death_failure(self, ended: ProgramEnd) -> ReportedFailure:
        if ended.cause == "timeout":
            late = f"it did not end within {self._isolated.timeout:g} s and was killed"
            return outside_failure("agent_timeout", late)
        return outside_failure("agent_died", f"its process {ended}", self._child.error_tail)

    def _begin_answer(self, request: ChildRequest) -> None:
        answering = self._isolated.runtime.spawn(self._answer(request), f"endwell-ask-{request.ask}")
        self._answering.add(answering)
        answering.add_done_callback(self._on_answered)

    def _on_answered(self, answering: asyncio.Task[None]) -> None:
        self._answering.discard(answering)
        self._slots.release()

    async def _answer(self, request: ChildRequest) -> None:
        """Answer; cards are large, so the next ones are read when the child has taken these."""
        if request.question.method.startswith("card"):
            async with self._cards:
                await self._answer_now(request)
        else:
            await self._answer_now(request)

    async def _answer_now(self, request: ChildRequest) -> None:
        """An `EndwellError` is an answer; a lost turn, or anything else, ends the child and is raised."""
        answer: dict[str, Any] = {"answer": request.id}
        question = request.question
        try:
            if request.ask != "lease":
                answer["value"] = await self._gateway.answer(question.method, question.arguments)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not is_refusal(error):
                self._raised = error
                self._child.stop()
                return
            answer["error"] = error_message(cast(EndwellError, error))
        answer["lease_left"] = self._turn.seconds_left
        self._child.write(msgspec.json.encode(answer) + b"\n")
        await self._child.drain_input()


def checked_isolation(
    agent: str, isolation: object, timeout: float | timedelta | None, memory_mb: int | None
) -> dict[str, Any] | None:
    """The limits of an isolated agent; None for an agent inside the worker, where no limit can be kept."""
    if isolation not in (None, "process"):
        raise UsageError(f"agent {agent!r}: isolation must be 'process' or left out", field="isolation")
    if isolation is None and (timeout is not None or memory_mb is not None):
        problem = f"agent {agent!r}: a function inside the worker cannot be killed at a limit"
        raise UsageError(problem, hint='add isolation="process"', field="isolation")
    if isolation is None:
        return None
    return {
        "timeout": checked_seconds(agent, "timeout", timeout),
        "memory_mb": checked_memory(agent, memory_mb),
    }


def _order_line(turn: HeldTurn, recorder: Recorder) -> bytes:
    order = TurnOrder(
        task=turn.task,
        actor=turn.actor,
        settings=recorder.settings,
        limits=recorder.limits,
        approval=recorder.directory.approval,
        payload=msgspec.Raw(turn.payload),
    )
    return msgspec.json.encode(order) + b"\n"


async def _first_output(child: GuardedProgram) -> ChildOutput:
    """What the child says when it has loaded the app, or could not."""
    try:
        return _decode_output(await child.read_line())
    except LineTooLong:
        return ChildOutput()


async def _already_loaded(child: GuardedProgram) -> GuardedProgram:
    return child


def _decode_output(line: bytes | None) -> ChildOutput:
    """One message; empty at the end of the output, or when the line was cut by the child's death."""
    try:
        return _output_decoder.decode(line or b"{}")
    except UNREADABLE:
        return ChildOutput()


def _unreadable_output(error: Exception) -> ReportedFailure:
    return outside_failure("agent_bad_word", f"its process wrote a message that cannot be read: {error}")


def _copy_to_stderr(data: bytes) -> None:
    """What a child prints appears where its worker's own prints do."""
    sys.stderr.write(data.decode(errors="replace"))
