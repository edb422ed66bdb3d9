"""What programs and isolated functions have in common: listening to a process, its limits, its failures."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from endwell.errors import UsageError
from endwell.model import content
from endwell.model.task import ErrorInfo
from endwell.runtime.guarded_program import GuardedProgram, LineTooLong
from endwell.turn.held_turn import ReportedFailure

GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""
MEGABYTE = 1024 * 1024
_MESSAGE_LIMIT = 2_000
_TAIL_LIMIT = 8_000
_LONGEST_SECONDS = 10 * 365 * 86_400


class BadOutput(Exception):
    """A process wrote what it may not write."""


async def listen(
    process: GuardedProgram, on_line: Callable[[bytes], Awaitable[bool]]
) -> BadOutput | LineTooLong | None:
    """Pass on each line until `on_line` says that it was the last, or the output ends.

    A process that writes what it may not write is stopped, and the problem is returned.
    """
    try:
        while (line := await process.read_line()) is not None:
            if await on_line(line):
                break
    except (BadOutput, LineTooLong) as problem:
        process.stop()
        return problem
    return None


def outside_failure(code: str, message: str, tail: str = "") -> ReportedFailure:
    """A failure with the end of the error output: its last line in the message, all of it as traceback."""
    shown = content.printable_text(tail.strip("\n"), keep_lines=True)
    last = shown.rpartition("\n")[2].strip()
    text = content.clean_text(f"{message}: {last}" if last else message, _MESSAGE_LIMIT)
    traceback = content.clean_text(shown[-_TAIL_LIMIT:], _TAIL_LIMIT) or None
    return ReportedFailure(ErrorInfo(code=code, type="Program", message=text, traceback=traceback))


def checked_seconds(agent: str, what: str, given: float | timedelta | None) -> float | None:
    """A time limit in seconds; None is no limit."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and 0 < seconds <= _LONGEST_SECONDS):
        raise UsageError(f"agent {agent!r}: {what} must be a positive number of seconds", field=what)
    return seconds


def checked_memory(agent: str, megabytes: Any) -> int | None:
    """A memory limit in megabytes; None is no limit."""
    if megabytes is None:
        return None
    if not isinstance(megabytes, int) or isinstance(megabytes, bool) or not 1 <= megabytes <= 2**30:
        raise UsageError(f"agent {agent!r}: memory_mb must be a whole number from 1 up", field="memory_mb")
    if sys.platform != "linux":
        raise UsageError(f"agent {agent!r}: memory_mb can be kept on Linux only", field="memory_mb")
    return megabytes
