"""Agents that run outside the worker's own process: what programs and isolated functions have in common."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from endwell.errors import UsageError
from endwell.model import content
from endwell.model.task import ErrorInfo

if TYPE_CHECKING:
    from endwell.worker.bench import Bench
    from endwell.worker.turns import Turn

GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""
MEGABYTE = 1024 * 1024
_MESSAGE_LIMIT = 2_000
_TAIL_LIMIT = 8_000
_LONGEST_SECONDS = 10 * 365 * 86_400


class Outside(Protocol):
    """Carries out turns somewhere else. `run` leaves nothing behind, however it ends."""

    async def prepare(self) -> None:
        """Called when a worker starts; refuses what can never work as `UsageError`."""

    async def run(self, bench: Bench, turn: Turn) -> Any:
        """Carry out one turn and return its result."""

    async def close(self) -> None:
        """Called when a worker ends."""


class Reported(Exception):
    """A failure that was already put into words elsewhere, with the retry that was asked for there."""

    def __init__(self, info: ErrorInfo, after_seconds: float | None = None) -> None:
        super().__init__(info.message)
        self.info = info
        self.after_seconds = after_seconds


def failure(code: str, message: str, tail: str = "") -> Reported:
    """A failure with the end of the error output: its last line in the message, all of it as traceback."""
    said = content.shown(tail.strip("\n"), keep_lines=True)
    last = said.rpartition("\n")[2].strip()
    text = content.clean_text(f"{message}: {last}" if last else message, _MESSAGE_LIMIT)
    traceback = content.clean_text(said[-_TAIL_LIMIT:], _TAIL_LIMIT) or None
    return Reported(ErrorInfo(code=code, type="Program", message=text, traceback=traceback))


def checked_seconds(agent: str, what: str, given: float | timedelta | None) -> float | None:
    """A time limit in seconds; None is none."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and 0 < seconds <= _LONGEST_SECONDS):
        raise UsageError(f"agent {agent!r}: {what} must be a positive number of seconds", field=what)
    return seconds


def checked_memory(agent: str, megabytes: Any) -> int | None:
    """A memory limit in megabytes; None is none."""
    if megabytes is None:
        return None
    if not isinstance(megabytes, int) or isinstance(megabytes, bool) or not 1 <= megabytes <= 2**30:
        raise UsageError(f"agent {agent!r}: memory_mb must be a whole number from 1 up", field="memory_mb")
    if sys.platform != "linux":
        raise UsageError(f"agent {agent!r}: memory_mb can be kept on Linux only", field="memory_mb")
    return megabytes
