"""A program under a warden: it cannot outlive its time limit, or the process that started it.

Its output is read line by line; the end of its error output is kept. The warden ends the program when the
`GuardedProgram` object is closed or forgotten, and when its process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self, cast

TAIL_BYTES = 4096
"""Bytes kept of the end of the error output."""
LEAVING_SECONDS = 1.0
"""Longest wait for the last of the output after the program has ended."""
WARDEN_SECONDS = 5.0
"""How much longer than it should a warden may take to end its program, before it is killed itself."""
_WARDEN = str(Path(__file__).with_name("warden.py"))

Cause = Literal["", "stop", "timeout"]


class ProgramNotStarted(Exception):
    """The program could not be started; the message says why."""


class LineTooLong(Exception):
    """The program wrote more than the limit without ending the line."""


class ProgramEnd(NamedTuple):
    """How a program ended: its exit code, negative for a signal, and why the warden ended it, if it did."""

    code: int
    cause: Cause

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exited with code {self.code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-self.code).name}"
        return f"was killed by signal {-self.code}"


async def start_guarded(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    line_limit: int,
    grace_seconds: float,
    memory_bytes: int = 0,
    on_stderr: Callable[[bytes], None] | None = None,
) -> GuardedProgram:
    """Start a program in a session of its own; raise `ProgramNotStarted` if that fails."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-I", "-S", _WARDEN, str(theirs.fileno()), str(grace_seconds)]
    try:
        process = subprocess.Popen(  # noqa: ASYNC220 (takes a millisecond)
            [*command, str(memory_bytes), *argv],
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        ours.close()
        raise ProgramNotStarted(str(error)) from error
    finally:
        theirs.close()
    guarded = GuardedProgram(process, line_limit, grace_seconds + WARDEN_SECONDS, on_stderr)
    try:
        await guarded._open(ours)
    except BaseException:
        if guarded._to_warden is None:
            ours.close()
        await guarded.close()
        raise
    return guarded


class GuardedProgram:
    """A started program. Leaving its `async with` block ends it."""

    def __init__(
        self,
        warden: subprocess.Popen[bytes],
        line_limit: int,
        patience_seconds: float,
        on_stderr: Callable[[bytes], None] | None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.pid = 0
        self._warden = warden
        self._patience_seconds = patience_seconds
        self._killing: asyncio.TimerHandle | None = None
        self._cause_without_warden: Cause = "stop"
        self._lines = asyncio.StreamReader(limit=line_limit)
        self._output = _Output(self._lines)
        self._errors = _Tail(on_stderr)
        self._transports: list[asyncio.BaseTransport] = []
        self._input: asyncio.WriteTransport
        self._flow = _Flow()
        self._from_warden: asyncio.StreamReader | None = None
        self._to_warden: asyncio.StreamWriter | None = None
        self._is_stopped = False
        self._end: ProgramEnd | None = None
        self._watching: asyncio.Task[ProgramEnd] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open(self, control: socket.socket) -> None:
        connect = self.loop.connect_read_pipe
        for protocol, pipe in (
            (self._output, self._warden.stdout),
            (self._errors, self._warden.stderr),
        ):
            self._transports.append((await connect(lambda p=protocol: p, _open(pipe)))[0])  # type: ignore[misc]
        writing = await self.loop.connect_write_pipe(lambda: self._flow, _open(self._warden.stdin))
        self._input = writing[0]
        self._transports.append(self._input)
        self._from_warden, self._to_warden = await asyncio.open_unix_connection(sock=control)
        word, _, rest = (await self._from_warden.readline()).decode(errors="replace").strip().partition(" ")
        if word != "started":
            raise ProgramNotStarted(rest or "its warden did not start")
        self.pid = int(rest)
        self._watching = self.loop.create_task(self._watch_warden(self._from_warden))

    @property
    def is_over(self) -> bool:
        """Whether the program is known to have ended."""
        return self._end is not None or self._lines.at_eof()

    @property
    def error_tail(self) -> str:
        """The end of its error output so far."""
        return bytes(self._errors.kept).decode(errors="replace")

    def write(self, data: bytes) -> None:
        """Write to its input; lost if its input is closed."""
        if not self._input.is_closing():
            self._input.write(data)

    async def drain_input(self) -> None:
        """Wait until it has read most of its input, or has ended."""
        await self._flow.free.wait()

    def write_end(self) -> None:
        """Close its input."""
        if not self._input.is_closing():
            self._input.write_eof()

    def limit_time(self, seconds: float) -> None:
        """Have the warden end it after this time, even if this process is stuck or frozen then."""
        if self._to_warden is not None and not self._is_stopped:
            self._to_warden.write(f"limit {seconds}\n".encode())
            self._expect_end(seconds, "timeout")

    def stop(self) -> None:
        """Ask the warden to end it now, with every process it has started."""
        if self._to_warden is not None and not self._is_stopped:
            self._is_stopped = True
            with contextlib.suppress(OSError):  # the warden is gone
                self._to_warden.write_eof()
            self._expect_end(0, "stop")

    def _expect_end(self, seconds: float, cause: Cause) -> None:
        """Kill the warden if it has not ended the program long after this time."""
        if self._killing is not None:
            self._killing.cancel()
        if seconds < math.inf:
            later = seconds + self._patience_seconds
            self._killing = self.loop.call_later(later, self._kill_warden, cause)

    def _kill_warden(self, cause: Cause) -> None:
        """Kill the warden, which does not answer: the program may have stopped it by a signal."""
        self._cause_without_warden = cause
        self._warden.kill()

    async def read_line(self) -> bytes | None:
        """Read the next line of its output, with its line end; None at the end of the output.

        Lets other tasks of the event loop run before each line.
        """
        await asyncio.sleep(0)
        try:
            return await self._lines.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial or None
        except asyncio.LimitOverrunError:
            raise LineTooLong from None

    async def wait_ended(self) -> ProgramEnd:
        """Wait until it and every process it has started have ended."""
        if self._watching is None:
            raise ProgramNotStarted("it was never started")
        return await asyncio.shield(self._watching)

    async def close(self) -> None:
        """End the program, wait for its end, and close all pipes."""
        self.stop()
        try:
            if self._watching is not None:
                await self.wait_ended()
            if self._from_warden is not None:
                with contextlib.suppress(ConnectionError):
                    await self._from_warden.read()  # until the warden exits
                self._warden.wait()
        finally:
            if self._watching is not None:
                self._watching.cancel()
            if self._killing is not None:
                self._killing.cancel()
            for transport in (self._to_warden, *self._transports):
                if transport is not None:
                    transport.close()
            for pipe in (self._warden.stdin, self._warden.stdout, self._warden.stderr):
                if pipe is not None:
                    pipe.close()

    async def _watch_warden(self, from_warden: asyncio.StreamReader) -> ProgramEnd:
        """Wait for the warden's last line, then for the last of the output."""
        words: list[str] = []
        with contextlib.suppress(ConnectionError):
            words = (await from_warden.readline()).decode().split()
        self.stop()
        if words:
            self._end = ProgramEnd(int(words[1]), cast(Cause, words[2] if len(words) > 2 else ""))
        else:
            self._end = self._without_warden()
        if self._killing is not None:
            self._killing.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVING_SECONDS):
                await self._output.end.wait()
                await self._errors.end.wait()
        for transport in self._transports:  # a process out of reach may hold the other end
            transport.close()
        return self._end

    def _without_warden(self) -> ProgramEnd:
        """Kill the program: its warden is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return ProgramEnd(-signal.SIGKILL, self._cause_without_warden)


class _Output(asyncio.StreamReaderProtocol):
    """The output, and an event at its end."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        super().__init__(lines)
        self.end = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.end.set()


class _Flow(asyncio.BaseProtocol):
    """Whether the program keeps up with its input."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()

    def pause_writing(self) -> None:
        self.free.clear()

    def resume_writing(self) -> None:
        self.free.set()

    def connection_lost(self, _: Exception | None) -> None:
        self.free.set()


class _Tail(asyncio.Protocol):
    """Keeps the end of the error output, and passes all of it on."""

    def __init__(self, on_data: Callable[[bytes], None] | None) -> None:
        self.kept = bytearray()
        self.end = asyncio.Event()
        self._on_data = on_data

    def data_received(self, data: bytes) -> None:
        self.kept += data
        del self.kept[:-TAIL_BYTES]
        if self._on_data is not None:
            self._on_data(data)

    def connection_lost(self, _: Exception | None) -> None:
        self.end.set()


def _open(pipe: IO[bytes] | None) -> Any:
    if pipe is None:
        raise ValueError("the warden was not started with pipes")
    return pipe
