"""Agents that are programs: JSON on standard input, JSON lines on standard output.

A program reads its payload, one JSON document, until its input ends. It writes lines, each an object with
one key: `{"progress": "text"}`, `{"usage": {"tokens": 12}}`, `{"draft": value}`, `{"error": "text"}`,
`{"call": {"name": "search", "arguments": value}}`, and exactly once `{"result": value}`. It must then exit
with 0. Anything else fails the turn, with the end of what the program wrote to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from endwell.errors import BadInput, UsageError
from endwell.external.runner import GRACE_SECONDS, MEGABYTE, failure
from endwell.model import content
from endwell.runtime.base import Runtime
from endwell.runtime.guarded_program import (
    GuardedProgram,
    LineTooLong,
    ProgramEnd,
    ProgramNotStarted,
    start_guarded,
)
from endwell.turn.context import Context
from endwell.turn.held_turn import ReportedFailure
from endwell.turn.steps import NOTE_LIMIT

if TYPE_CHECKING:
    from endwell.turn.held_turn import HeldTurn
    from endwell.turn.recorder import Recorder

OUTPUT_BYTES = 64 * MEGABYTE
"""Most that a program may write in one turn."""
PULSE_SECONDS = 1.0
"""A talkative program's progress and drafts are stored this often at most."""
_LINE_BYTES = content.MAX_WRITTEN_BYTES
_NOTE_LIMIT = 500
_NAME_LIMIT = 100
_KINDS = "progress, usage, draft, error, call, result"
_USAGE_KEYS = 50


async def any_program(payload: Any = None) -> Any:
    """How programs look from outside: any payload, any result. It is `Program.run` that carries them out."""
    raise UsageError("a program is not called as a function")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A command, and the limits within which it works."""

    runtime: Runtime
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | Path | None
    timeout: float | None
    memory_mb: int | None
    grace: float = GRACE_SECONDS

    async def prepare(self) -> None:
        """Whether there is such a program may change at any time; each turn finds out."""

    async def close(self) -> None:
        """Nothing of a program outlives its turn."""

    async def run(self, recorder: Recorder, turn: HeldTurn) -> Any:
        """One start of the program; it is gone when this returns, however it does."""
        try:
            process = await self._started(turn)
        except ProgramNotStarted as error:
            raise failure("program_not_started", f"{self.argv[0]} could not be started: {error}") from None
        async with process:
            if self.timeout is not None:
                process.limit(self.timeout)
            process.write(turn.payload)
            process.write_end()
            return await ProgramConversation(self, process, recorder).deliverable()

    async def _started(self, turn: HeldTurn) -> GuardedProgram:
        task = turn.task
        about = {
            "ENDWELL_TASK_ID": task.id,
            "ENDWELL_ATTEMPT_ID": turn.attempt_id,
            "ENDWELL_EPOCH": str(task.epoch),
            "ENDWELL_IDEMPOTENCY_KEY": task.idempotency_key,
        }
        return await start_guarded(
            self.argv,
            env={**os.environ, **self.env, **about},
            cwd=self.cwd,
            line_limit=_LINE_BYTES,
            grace_seconds=self.grace,
            memory_bytes=(self.memory_mb or 0) * MEGABYTE,
        )


class ProgramConversation:
    """What a program says, and what is made of it in the end."""

    def __init__(self, program: Program, process: GuardedProgram, recorder: Recorder) -> None:
        self._program = program
        self._process = process
        self._recorder = recorder
        self._repeat_guard = recorder.repeat_guard
        self._heard = Heard()
        self._pulse = _Pulse(program.runtime, self._heard, recorder, process.stop)

    async def deliverable(self) -> Any:
        """The program's result, or the reason why there is none."""
        pulse = self._program.runtime.spawn(self._pulse.run(), "endwell-program-progress")
        try:
            problem = await self._listened()
            ended = await self._process.ended()
            self._pulse.finish()
            await pulse
        finally:
            pulse.cancel()
        if self._pulse.error is not None:
            raise self._pulse.error
        if (failed := self._failure(problem, ended)) is not None:
            raise failed
        return self._heard.results[0]

    async def _listened(self) -> str | None:
        """Hear it to the end of its output; what was wrong with that, if anything was."""
        size = 0
        try:
            while (line := await self._process.read_line()) is not None:
                size += len(line)
                if size > OUTPUT_BYTES:
                    raise BadOutput(f"it wrote more than {OUTPUT_BYTES:,} bytes")
                if line.strip():
                    await self._judge(self._heard.take(line))
                    self._pulse.beat()
        except LineTooLong:
            problem = f"it wrote a line of more than {_LINE_BYTES:,} bytes"
        except BadOutput as error:
            problem = str(error)
        else:
            return None
        self._process.stop()
        return problem

    async def _judge(self, said: Told | None) -> None:
        """What it tells of its own errors and calls: the same again and again is nudged, then stopped."""
        if said is not None and said.is_error:
            await self._recorder.report_repeat(self._repeat_guard.on_error(said.name, said.about))
        elif said is not None:
            report = self._repeat_guard.on_call(said.name, said.about, is_new=True)
            await self._recorder.report_repeat(report)

    def _failure(self, problem: str | None, ended: ProgramEnd) -> ReportedFailure | None:
        name, tail = self._program.argv[0], self._process.tail
        if problem is not None:
            return failure("program_bad_output", f"{name}: {problem}", tail)
        if ended.cause == "timeout":
            timeout = f"{name} did not end within {self._program.timeout:g} s"
            return failure("program_timeout", timeout, tail)
        if ended.code:
            return failure("program_failed", f"{name} {ended}", tail)
        if not self._heard.results:
            return failure("program_no_result", f"{name} ended without a result line", tail)
        return None


class BadOutput(Exception):
    """A line that is not what a program may say."""


class Told(NamedTuple):
    """An error that a program goes on from, or something that it asks somebody for."""

    name: str
    about: Any
    is_error: bool


class Heard:
    """What a program has said so far. `usage` is the sum of all it has told."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.drafts: list[Any] = []
        self.usage: dict[str, int | float] = {}
        self.progress = ""

    def take(self, line: bytes) -> Told | None:
        """Take in one line; `BadOutput` if it makes no sense. Errors and calls are returned."""
        try:
            said = content.decode(line, what="line")
        except BadInput as error:
            raise BadOutput(f"it wrote {_excerpt(line)}: {error.message}") from None
        match said:
            case {"progress": str(text), **rest} if not rest:
                self.progress = text[:_NOTE_LIMIT]
            case {"usage": dict(usage), **rest} if not rest:
                self._add(usage)
            case {"draft": value, **rest} if not rest:
                self.drafts = [value]
            case {"error": str(text), **rest} if not rest:
                return Told("the program", text, True)
            case {"call": {"name": str(name), **call}, **rest} if not rest and not call.keys() - {
                "arguments"
            }:
                return Told(content.clean_text(name, _NAME_LIMIT), call.get("arguments"), False)
            case {"result": value, **rest} if not rest and not self.results:
                self.results = [value]
            case {"result": _, **rest} if not rest:
                raise BadOutput("it wrote a second result line")
            case _:
                raise BadOutput(f"it wrote {_excerpt(line)}, which is none of {_KINDS}")
        return None

    @property
    def note(self) -> str:
        """What a sign of progress says: the last text, and what was used up to now."""
        used = ", ".join(f"{key} {amount:g}" for key, amount in self.usage.items())
        return "; ".join(part for part in (self.progress, used and f"used {used}") if part)

    def _add(self, usage: dict[str, Any]) -> None:
        for key, amount in usage.items():
            is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
            if not is_number or not math.isfinite(amount) or amount < 0:
                raise BadOutput(f"its usage of {content.shown(key[:64])} is no amount")
            self.usage[key] = self.usage.get(key, 0) + amount
        if len(self.usage) > _USAGE_KEYS:
            raise BadOutput(f"it told of more than {_USAGE_KEYS} kinds of usage")


class _Pulse:
    """Every line is a sign of life, but only one a second is stored: the newest. So with drafts."""

    def __init__(
        self, runtime: Runtime, heard: Heard, recorder: Recorder, on_error: Callable[[], None]
    ) -> None:
        self._runtime = runtime
        self._heard = heard
        self._recorder = recorder
        self._on_error = on_error
        self._beaten = asyncio.Event()
        self._finished = asyncio.Event()
        self._said = ""
        self._kept = heard.drafts
        self.error: Exception | None = None

    def beat(self) -> None:
        self._beaten.set()

    def finish(self) -> None:
        """Say what is still unsaid, and come to an end."""
        self._finished.set()
        self._beaten.set()

    async def run(self) -> None:
        """Until finished; an error, such as a lost turn, ends the program."""
        try:
            while True:
                await self._beaten.wait()
                self._beaten.clear()
                is_last = self._finished.is_set()
                await self._tell(is_last)
                if is_last:
                    return
                await self._runtime.wait(self._finished, PULSE_SECONDS)
        except Exception as error:
            self.error = error
            self._on_error()

    async def _tell(self, is_last: bool) -> None:
        """What is new since the last time; at the end nothing is said twice."""
        if self._heard.drafts is not self._kept:
            self._kept = self._heard.drafts
            await Context(self._recorder).draft(self._kept[0])
        if not is_last or self._heard.note != self._said:
            self._said = self._heard.note
            # what it has used up by now is worth telling, but gets it nowhere
            note = content.clean_text(self._said, NOTE_LIMIT)
            await self._recorder.tell_progress(note, news=self._heard.progress)


def _excerpt(line: bytes) -> str:
    text = line[:80].decode(errors="replace").strip()
    return content.shown(f"{text}…" if len(line) > 80 else text)


def checked_command(agent: str, argv: Any) -> tuple[str, ...]:
    """The command as a list of words; a whole shell line is refused."""
    problem = None
    if isinstance(argv, str | bytes) or not isinstance(argv, Sequence) or not argv:
        problem = "must be a list of words, the program first"
    elif not all(isinstance(word, str) and "\0" not in word for word in argv) or not argv[0]:
        problem = "must be a list of texts without NUL characters"
    if problem:
        hint = 'for example ["python", "agent.py"]; for a shell line ["sh", "-c", "…"]'
        raise UsageError(f"agent {agent!r}: the command {problem}", hint=hint, field="argv")
    return tuple(argv)


def checked_environment(agent: str, env: Mapping[str, str] | None) -> dict[str, str]:
    """What is added to the worker's own environment."""
    given = dict(env or {})
    for name, value in given.items():
        with contextlib.suppress(TypeError, AttributeError):
            if name and "=" not in name and "\0" not in name + value:
                continue
        raise UsageError(f"agent {agent!r}: {name!r} is no environment variable", field="env")
    return given
