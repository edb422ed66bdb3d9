"""A program under a warden: it cannot outlive the process that started it, nor its time, nor its welcome.

Its output is read line by line, of its error output the end is kept. Whatever becomes of the `GuardedProgram`
object, closed, forgotten or killed with its process, the warden ends the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self, cast

TAIL_BYTES = 4096
"""How much of the end of the error output is kept."""
LEAVING_SECONDS = 1.0
"""How long the last of the output may take when the program has ended."""
_WARDEN = str(Path(__file__).with_name("warden.py"))

Cause = Literal["", "stop", "timeout"]


class ProgramNotStarted(Exception):
    """The program could not be started; the message says why."""


class LineTooLong(Exception):
    """The program wrote more than the limit without ending the line."""


class ProgramEnd(NamedTuple):
    """How a program ended: its exit code, negative for a signal, and what it was ended for."""

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
    """Start a program in a session of its own; `ProgramNotStarted` if that cannot be."""
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
    guarded = GuardedProgram(process, line_limit, on_stderr)
    try:
        await guarded._open(ours)
    except BaseException:
        if guarded._told is None:
            ours.close()
        await guarded.close()
        raise
    return guarded


class GuardedProgram:
    """A started program. `async with` ends it when the block is left."""

    def __init__(
        self, warden: subprocess.Popen[bytes], line_limit: int, on_stderr: Callable[[bytes], None] | None
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.pid = 0
        self._warden = warden
        self._lines = asyncio.StreamReader(limit=line_limit)
        self._output = _Output(self._lines)
        self._errors = _Tail(on_stderr)
        self._transports: list[asyncio.BaseTransport] = []
        self._input: asyncio.WriteTransport
        self._flow = _Flow()
        self._says: asyncio.StreamReader | None = None
        self._told: asyncio.StreamWriter | None = None
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
        self._says, self._told = await asyncio.open_unix_connection(sock=control)
        word, _, rest = (await self._says.readline()).decode(errors="replace").strip().partition(" ")
        if word != "started":
            raise ProgramNotStarted(rest or "its warden did not start")
        self.pid = int(rest)
        self._watching = self.loop.create_task(self._watch(self._says))

    @property
    def is_over(self) -> bool:
        """Whether the program is known to have ended."""
        return self._end is not None or self._lines.at_eof()

    @property
    def tail(self) -> str:
        """The end of what it wrote to its error output so far."""
        return bytes(self._errors.kept).decode(errors="replace")

    def write(self, data: bytes) -> None:
        """Send to its input; lost if it does not listen."""
        if not self._input.is_closing():
            self._input.write(data)

    async def drain(self) -> None:
        """Wait until it has read most of what was written to it, or has ended."""
        await self._flow.free.wait()

    def write_end(self) -> None:
        """Let its input end."""
        if not self._input.is_closing():
            self._input.write_eof()

    def limit(self, seconds: float) -> None:
        """End it when it still runs then, even if this process should be stuck or frozen meanwhile."""
        if self._told is not None and not self._is_stopped:
            self._told.write(f"limit {seconds}\n".encode())

    def stop(self) -> None:
        """Ask the warden to end it, now and with everything it has started."""
        if self._told is not None and not self._is_stopped:
            self._is_stopped = True
            with contextlib.suppress(OSError):  # the warden is gone
                self._told.write_eof()

    async def read_line(self) -> bytes | None:
        """The next line of its output with its line end, if it has one; None at the end of the output.

        Other tasks of the event loop run before each line, however quickly the program writes.
        """
        await asyncio.sleep(0)
        try:
            return await self._lines.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial or None
        except asyncio.LimitOverrunError:
            raise LineTooLong from None

    async def ended(self) -> ProgramEnd:
        """Wait until it and everything it has started is gone."""
        if self._watching is None:
            raise ProgramNotStarted("it was never started")
        return await asyncio.shield(self._watching)

    async def close(self) -> None:
        """End the program, wait until it is gone, and give everything back."""
        self.stop()
        try:
            if self._watching is not None:
                await self.ended()
            if self._says is not None:
                with contextlib.suppress(ConnectionError):
                    await self._says.read()  # until the warden leaves
                self._warden.wait()
        finally:
            if self._watching is not None:
                self._watching.cancel()
            for transport in (self._told, *self._transports):
                if transport is not None:
                    transport.close()
            for pipe in (self._warden.stdin, self._warden.stdout, self._warden.stderr):
                if pipe is not None:
                    pipe.close()

    async def _watch(self, says: asyncio.StreamReader) -> ProgramEnd:
        """Wait for the warden's last word, then for the last of the output."""
        words: list[str] = []
        with contextlib.suppress(ConnectionError):
            words = (await says.readline()).decode().split()
        self.stop()
        if words:
            self._end = ProgramEnd(int(words[1]), cast(Cause, words[2] if len(words) > 2 else ""))
        else:
            self._end = self._without_warden()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVING_SECONDS):
                await self._output.end.wait()
                await self._errors.end.wait()
        for transport in self._transports:  # somebody out of reach may hold the other end
            transport.close()
        return self._end

    def _without_warden(self) -> ProgramEnd:
        """Somebody has killed the warden: what it watched over must not go on."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return ProgramEnd(-signal.SIGKILL, "stop")


class _Output(asyncio.StreamReaderProtocol):
    """Lines, and word of their end."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        super().__init__(lines)
        self.end = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.end.set()


class _Flow(asyncio.BaseProtocol):
    """Knows whether the program reads what is written to it."""

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
    """Keeps the end of what comes, and passes it on to whoever wants all of it."""

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
