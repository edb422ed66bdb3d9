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
from typing import Any, NamedTuple

from endwell.errors import BadInput, UsageError
from endwell.external.runner import GRACE_SECONDS, MEGABYTE, BadOutput, listen, outside_failure
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
from endwell.turn.held_turn import HeldTurn, ReportedFailure
from endwell.turn.recorder import Recorder
from endwell.turn.steps import NOTE_LIMIT

OUTPUT_BYTES = 64 * MEGABYTE
"""Most that a program may write in one turn."""
PULSE_SECONDS = 1.0
"""Progress and drafts of a program are stored this often at most."""
_LINE_BYTES = content.MAX_WRITTEN_BYTES
_NAME_LIMIT = 100
_KINDS = "progress, usage, draft, error, call, result"
_USAGE_KEYS = 50


async def any_program(payload: Any = None) -> Any:
    """The signature of every program: any payload, any result. `Program.run` carries its turns out."""
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
        """Nothing: whether there is such a program may change at any time, so each turn finds out."""

    async def close(self) -> None:
        """Nothing of a program outlives its turn."""

    async def run(self, recorder: Recorder, turn: HeldTurn) -> Any:
        """Start the program for one turn; it is gone when this returns, however it does."""
        try:
            process = await self._start(turn)
        except ProgramNotStarted as error:
            raise outside_failure(
                "program_not_started", f"{self.argv[0]} could not be started: {error}"
            ) from None
        async with process:
            if self.timeout is not None:
                process.limit_time(self.timeout)
            process.write(turn.payload)
            process.write_end()
            return await ProgramConversation(self, process, recorder).read_result()

    async def _start(self, turn: HeldTurn) -> GuardedProgram:
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
    """Listens to one program, and turns its output into a result or a failure."""

    def __init__(self, program: Program, process: GuardedProgram, recorder: Recorder) -> None:
        self._program = program
        self._process = process
        self._recorder = recorder
        self._size = 0
        self._output = ProgramOutput()
        self._pulse = _Pulse(program.runtime, self._output, recorder, process.stop)

    async def read_result(self) -> Any:
        pulse = self._program.runtime.spawn(self._pulse.run(), "endwell-program-progress")
        try:
            problem = await listen(self._process, self._on_line)
            ended = await self._process.wait_ended()
            self._pulse.finish()
            await pulse
        finally:
            pulse.cancel()
        if self._pulse.error is not None:
            raise self._pulse.error
        if (failed := self._end_failure(problem, ended)) is not None:
            raise failed
        return self._output.results[0]

    async def _on_line(self, line: bytes) -> bool:
        self._size += len(line)
        if self._size > OUTPUT_BYTES:
            raise BadOutput(f"it wrote more than {OUTPUT_BYTES:,} bytes")
        if line.strip():
            report = self._output.take(line)
            if report is not None:
                await self._count_repeats(report)
            self._pulse.note_output()
        return False

    async def _count_repeats(self, report: ProgramReport) -> None:
        repeats = self._recorder.repeat_guard
        if report.is_error:
            await self._recorder.report_repeat(repeats.on_error(report.name, report.about))
        else:
            await self._recorder.report_repeat(repeats.on_call(report.name, report.about, is_new=True))

    def _end_failure(self, problem: Exception | None, ended: ProgramEnd) -> ReportedFailure | None:
        name, tail = self._program.argv[0], self._process.error_tail
        if isinstance(problem, LineTooLong):
            problem = BadOutput(f"it wrote a line of more than {_LINE_BYTES:,} bytes")
        if problem is not None:
            return outside_failure("program_bad_output", f"{name}: {problem}", tail)
        if ended.cause == "timeout":
            timeout = f"{name} did not end within {self._program.timeout:g} s"
            return outside_failure("program_timeout", timeout, tail)
        if ended.code:
            return outside_failure("program_failed", f"{name} {ended}", tail)
        if not self._output.results:
            return outside_failure("program_no_result", f"{name} ended without a result line", tail)
        return None


class ProgramReport(NamedTuple):
    """An error that a program continues after, or a call that it makes by itself."""

    name: str
    about: Any
    is_error: bool


class ProgramOutput:
    """What a program has written up to now; `usage` is the sum of all lines."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.drafts: list[Any] = []
        self.usage: dict[str, int | float] = {}
        self.progress = ""

    def take(self, line: bytes) -> ProgramReport | None:
        """Read one line; errors and calls, which may repeat themselves, are returned."""
        try:
            said = content.decode(line, what="line")
        except BadInput as error:
            raise BadOutput(f"it wrote {_line_excerpt(line)}: {error.message}") from None
        match said:
            case {"progress": str(text), **rest} if not rest:
                self.progress = text[:NOTE_LIMIT]
            case {"usage": dict(usage), **rest} if not rest:
                self._add_usage(usage)
            case {"draft": value, **rest} if not rest:
                self.drafts = [value]
            case {"error": str(text), **rest} if not rest:
                return ProgramReport("the program", text, is_error=True)
            case {"call": {"name": str(name), **call}, **rest} if not rest and not call.keys() - {
                "arguments"
            }:
                shown = content.clean_text(name, _NAME_LIMIT)
                return ProgramReport(shown, call.get("arguments"), is_error=False)
            case {"result": value, **rest} if not rest and not self.results:
                self.results = [value]
            case {"result": _, **rest} if not rest:
                raise BadOutput("it wrote a second result line")
            case _:
                raise BadOutput(f"it wrote {_line_excerpt(line)}, which is none of {_KINDS}")
        return None

    @property
    def progress_note(self) -> str:
        """The text of a sign of progress: the last text, and what was used up to now."""
        used = ", ".join(f"{key} {amount:g}" for key, amount in self.usage.items())
        return "; ".join(part for part in (self.progress, used and f"used {used}") if part)

    def _add_usage(self, usage: dict[str, Any]) -> None:
        for key, amount in usage.items():
            is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
            if not is_number or not math.isfinite(amount) or amount < 0:
                raise BadOutput(f"its usage of {content.printable_text(key[:64])} is no amount")
            self.usage[key] = self.usage.get(key, 0) + amount
        if len(self.usage) > _USAGE_KEYS:
            raise BadOutput(f"it reported more than {_USAGE_KEYS} kinds of usage")


class _Pulse:
    """Stores progress and drafts at most once a second, the newest of each."""

    def __init__(
        self, runtime: Runtime, output: ProgramOutput, recorder: Recorder, on_error: Callable[[], None]
    ) -> None:
        self._runtime = runtime
        self._output = output
        self._recorder = recorder
        self._on_error = on_error
        self._has_news = asyncio.Event()
        self._finished = asyncio.Event()
        self._note = ""
        self._kept = output.drafts
        self.error: Exception | None = None

    def note_output(self) -> None:
        self._has_news.set()

    def finish(self) -> None:
        """Store what is left, then end."""
        self._finished.set()
        self._has_news.set()

    async def run(self) -> None:
        """Store until finished; an error, such as a lost turn, ends the program."""
        try:
            while True:
                await self._has_news.wait()
                self._has_news.clear()
                is_last = self._finished.is_set()
                await self._store_news(is_last)
                if is_last:
                    return
                await self._runtime.wait(self._finished, PULSE_SECONDS)
        except Exception as error:
            self.error = error
            self._on_error()

    async def _store_news(self, is_last: bool) -> None:
        """Store what is new since the last time; at the end nothing is stored twice."""
        if self._output.drafts is not self._kept:
            self._kept = self._output.drafts
            await Context(self._recorder).draft(self._kept[0])
        if not is_last or self._output.progress_note != self._note:
            self._note = self._output.progress_note
            # usage is worth storing, but only new text counts as progress of the work
            note = content.clean_text(self._note, NOTE_LIMIT)
            await self._recorder.tell_progress(note, news=self._output.progress)


def _line_excerpt(line: bytes) -> str:
    text = line[:80].decode(errors="replace").strip()
    return content.printable_text(f"{text}…" if len(line) > 80 else text)


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
