"""Agent functions in a process of their own, which can be killed when they are stuck or eat the memory.

The child is a fresh interpreter that loads the app again (`external/child.py`); it carries out one turn and
ends. Both sides speak JSON lines. The worker's first line is the turn (`child.Order`). The child says, in
this order:

    {"ready": true}                                               or {"broken": error}
    {"doing": {step: since}}                                      any number of times, as the next two
    {"ask": "store", "id": n, "with": {"method": "card", "arguments": [...]}}
    {"ask": "lease", "id": n, "with": {}}
    {"result": value}                                             or how else the turn ended:
    {"error": {...}, "after": seconds}
    {"suspended": {"calls": [...], "children": [...]}}
    {"handed_over": true}
    {"lost": error}

Each `ask` is answered by `{"answer": n, "lease_left": seconds, "value": ...}`, or with `error` for `value`.
The worker answers `IN_FLIGHT` requests at a time and reads no further until the child has taken an answer, so
a child that asks without reading waits by itself and costs its worker a bounded amount of memory.
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
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import msgspec

from endwell.errors import EndwellError, Refused, UsageError
from endwell.external.app_location import home_of
from endwell.external.child_pipe import IN_FLIGHT, LINE_BYTES, REQUEST_BYTES
from endwell.external.command_checks import child_error, clean_doing
from endwell.external.gateway import Gateway, is_refusal
from endwell.external.remote_store import error_said
from endwell.external.runner import GRACE_SECONDS, checked_memory, checked_seconds, failure
from endwell.model.content import MAX_BYTES, MAX_INTEGER
from endwell.model.task import ErrorInfo
from endwell.runtime.base import Runtime
from endwell.runtime.guarded_program import (
    GuardedProgram,
    LineTooLong,
    ProgramEnd,
    ProgramNotStarted,
    start_guarded,
)
from endwell.turn.held_turn import ReportedFailure
from endwell.turn.suspension import GivenBack, HandedOver

if TYPE_CHECKING:
    from endwell.turn.held_turn import HeldTurn
    from endwell.turn.recorder import Recorder

LOAD_SECONDS = 120.0
"""How long a child may take to load the app."""
LEAVE_SECONDS = 5.0
"""How long a child may take to end once it has said its result."""
MAX_AFTER_BYTES: Final = 1000
"""What says more than this is no number of seconds."""
_ONE_HEAP: Final = {"MALLOC_ARENA_MAX": "1"}
"""Otherwise the C library sets some of a memory limit aside for each thread, so for each step."""
_BOOT: Final = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from endwell.external.child import main; main(sys.argv[1])"
)


class Question(msgspec.Struct, frozen=True):
    """What a child wants to know or have done."""

    method: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"[]")


class ChildRequest(msgspec.Struct, frozen=True):
    """One request of a child, whose answer goes by the same number."""

    ask: Literal["store", "lease"]
    id: Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
    about: Question = msgspec.field(name="with")


class ChildOutput(msgspec.Struct, frozen=True):
    """One line of a child. Each part stays JSON, which takes less room, until it is read by its type."""

    ready: msgspec.Raw = msgspec.Raw()
    broken: msgspec.Raw = msgspec.Raw()
    doing: msgspec.Raw = msgspec.Raw()
    ask: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    after: msgspec.Raw = msgspec.Raw()
    suspended: msgspec.Raw = msgspec.Raw()
    handed_over: msgspec.Raw = msgspec.Raw()
    lost: msgspec.Raw = msgspec.Raw()


_said_decoder = msgspec.json.Decoder(ChildOutput)
_asked_decoder = msgspec.json.Decoder(ChildRequest)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


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
            child = await self._taken()
        except ReportedFailure as broken:
            problem = f"agent {self.agent!r} cannot run in a process of its own: {broken.info.message}"
            raise UsageError(problem, hint="register it at the top level of a module") from None
        self._spare = self.runtime.spawn(_itself(child), f"endwell-spare-{self.agent}")

    async def run(self, recorder: Recorder, turn: HeldTurn) -> Any:
        """One turn in one child, which is gone when this returns, however it does."""
        async with await self._taken() as child:
            child.limit(float("inf") if self.timeout is None else self.timeout)
            child.write(_order(turn, recorder))
            if self._spare is None:
                self._spare = self.runtime.spawn(self._loaded(), f"endwell-spare-{self.agent}")
            return await ChildConversation(self, child, turn, recorder).result()

    async def close(self) -> None:
        """End the spare."""
        spare = self._own_spare()
        if spare is not None:
            spare.cancel()
            await asyncio.wait([spare])
            if not spare.cancelled() and spare.exception() is None:
                await spare.result().close()

    async def _taken(self) -> GuardedProgram:
        """The spare, as soon as it is loaded, if there is a good one; else a new child."""
        spare = self._own_spare()
        if spare is not None:
            child = await spare
            if not child.is_over:
                return child
            await child.close()
        return await self._loaded()

    def _own_spare(self) -> asyncio.Task[GuardedProgram] | None:
        """Whoever asks has the spare for himself; one on another event loop is of no use here."""
        spare, self._spare = self._spare, None
        return spare if spare is not None and spare.get_loop() is asyncio.get_running_loop() else None

    async def _loaded(self) -> GuardedProgram:
        """A child that has loaded the app and waits for a turn."""
        home = home_of(self.app, self.function, self.agent)
        order = json.dumps({**home, "agent": self.agent, "memory_mb": self.memory_mb})
        argv = [sys.executable, "-P", "-c", _BOOT, order, json.dumps(sys.path)]
        try:
            child = await start_guarded(
                argv,
                env=None if self.memory_mb is None else {**os.environ, **_ONE_HEAP},
                line_limit=LINE_BYTES,
                grace_seconds=GRACE_SECONDS,
                on_stderr=_pass_on,
            )
        except ProgramNotStarted as error:
            raise failure("agent_not_loaded", f"no process could be started: {error}") from None
        try:
            child.limit(LOAD_SECONDS)
            said = await _first_word(child)
            if bytes(said.ready) != b"true":
                raise await self._not_loaded(child, said)
        except BaseException:
            await child.close()
            raise
        return child

    async def _not_loaded(self, child: GuardedProgram, said: ChildOutput) -> ReportedFailure:
        with contextlib.suppress(*_UNREADABLE):
            return ReportedFailure(child_error(msgspec.json.decode(said.broken, type=ErrorInfo)))
        child.stop()
        return failure("agent_not_loaded", f"its process {await child.ended()} while loading", child.tail)


class ChildConversation:
    """What a child asks during its turn, until it says how the turn ended."""

    def __init__(self, isolated: Isolated, child: GuardedProgram, turn: HeldTurn, recorder: Recorder) -> None:
        self._isolated = isolated
        self._child = child
        self._turn = turn
        self._recorder = recorder
        self._access = Gateway(recorder)
        self._asking: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._cards = asyncio.Lock()
        self._raised: BaseException | None = None

    async def result(self) -> Any:
        try:
            said = await self._last_word()
            self._child.limit(LEAVE_SECONDS)
            ended = await self._child.ended()
        finally:
            for asking in self._asking:
                asking.cancel()
        if self._raised is not None:
            raise self._raised
        if said.result:
            return self._value(said.result, ended)
        raise await self._left(said) or self._died(ended)

    def _value(self, result: msgspec.Raw, ended: ProgramEnd) -> Any:
        if len(result) > MAX_BYTES:
            raise failure("result_not_storable", f"its result has more than {MAX_BYTES:,} bytes")
        try:
            return msgspec.json.decode(result)
        except _UNREADABLE:
            raise self._died(ended) from None

    async def _left(self, said: ChildOutput) -> BaseException | None:
        """What left the agent's function, as it would have inside the worker; the child is not believed."""
        try:
            if said.suspended:
                return await self._access.suspended(said.suspended)
            if said.handed_over and self._access.is_handed_over:
                return HandedOver("the task is in a person's hands")
            if said.lost:  # it could not see that the lease holds; a deceitful child gains nothing by it
                return GivenBack("its process gave the turn back")
            if said.error:
                info = child_error(msgspec.json.decode(said.error, type=ErrorInfo))
                after = said.after if 0 < len(said.after) < MAX_AFTER_BYTES else b"null"
                return ReportedFailure(info, msgspec.json.decode(after))
        except _UNREADABLE as nonsense:
            return _bad_word(nonsense)
        except Refused as refusal:
            return failure(refusal.code, refusal.message)
        if said.handed_over:
            return failure("agent_gave_turn_up", "its process left its turn, which it still held")
        return None

    def _died(self, ended: ProgramEnd) -> ReportedFailure:
        if ended.cause == "timeout":
            late = f"it did not end within {self._isolated.timeout:g} s and was killed"
            return failure("agent_timeout", late)
        return failure("agent_died", f"its process {ended}", self._child.tail)

    async def _last_word(self) -> ChildOutput:
        """How the turn ended; empty when the child ends without a word of it."""
        try:
            while (line := await self._child.read_line()) is not None:
                said = _decoded(line)
                if not said.doing and not said.ask:
                    return said
                if len(line) > REQUEST_BYTES:
                    raise msgspec.ValidationError(f"a request of more than {REQUEST_BYTES:,} bytes")
                if said.doing:
                    self._recorder.doing = clean_doing(said.doing)
                else:
                    await self._slots.acquire()
                    self._begin(_asked_decoder.decode(line))
        except LineTooLong:
            self._child.stop()
        except _UNREADABLE as nonsense:
            self._child.stop()
            self._raised = self._raised or _bad_word(nonsense)
        return ChildOutput()

    def _begin(self, asked: ChildRequest) -> None:
        asking = self._isolated.runtime.spawn(self._answer(asked), f"endwell-ask-{asked.ask}")
        self._asking.add(asking)
        asking.add_done_callback(self._on_answered)

    def _on_answered(self, asking: asyncio.Task[None]) -> None:
        self._asking.discard(asking)
        self._slots.release()

    async def _answer(self, asked: ChildRequest) -> None:
        """Cards are large: the next ones are read when the child has taken these."""
        if asked.about.method.startswith("card"):
            async with self._cards:
                await self._say(asked)
        else:
            await self._say(asked)

    async def _say(self, asked: ChildRequest) -> None:
        """An `EndwellError` is an answer; a lost turn, or anything else, ends the child and is raised."""
        answer: dict[str, Any] = {"answer": asked.id}
        try:
            if asked.ask != "lease":
                answer["value"] = await self._access.answer(asked.about.method, asked.about.arguments)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not is_refusal(error):
                self._raised = error
                self._child.stop()
                return
            answer["error"] = error_said(cast(EndwellError, error))
        answer["lease_left"] = self._turn.seconds_left
        self._child.write(msgspec.json.encode(answer) + b"\n")
        await self._child.drain()


def checked_isolation(
    agent: str, isolation: object, timeout: float | timedelta | None, memory_mb: int | None
) -> dict[str, Any] | None:
    """The limits of an isolated agent; None for one that runs in the worker, where none can be kept."""
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


def _order(turn: HeldTurn, recorder: Recorder) -> bytes:
    """The turn as `child.Order` reads it."""
    order = {
        "task": turn.task,
        "actor": turn.actor,
        "settings": recorder.settings,
        "limits": recorder.limits,
        "approval": recorder.directory.approval,
        "payload": msgspec.Raw(turn.payload),
    }
    return msgspec.json.encode(order) + b"\n"


async def _first_word(child: GuardedProgram) -> ChildOutput:
    """What the child says when it has loaded the app, or could not."""
    try:
        return _decoded(await child.read_line())
    except LineTooLong:
        return ChildOutput()


async def _itself(child: GuardedProgram) -> GuardedProgram:
    return child


def _decoded(line: bytes | None) -> ChildOutput:
    """One message; empty at the end of the output, or when the line was cut by the child's death."""
    try:
        return _said_decoder.decode(line or b"{}")
    except _UNREADABLE:
        return ChildOutput()


def _bad_word(nonsense: Exception) -> ReportedFailure:
    return failure("agent_bad_word", f"its process said what makes no sense: {nonsense}")


def _pass_on(data: bytes) -> None:
    """What a child prints appears where its worker's own prints do."""
    sys.stderr.write(data.decode(errors="replace"))
