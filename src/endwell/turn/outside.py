"""Agents whose turns are carried out outside the worker process: what a turn must know of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from endwell.model.task import ErrorInfo

if TYPE_CHECKING:
    from endwell.turn.recorder import Recorder
    from endwell.turn.turns import Turn


class OutsideRunner(Protocol):
    """Carries out turns somewhere else. `run` leaves nothing behind, however it ends."""

    async def prepare(self) -> None:
        """Called when a worker starts; refuses what can never work as `UsageError`."""

    async def run(self, bench: Recorder, turn: Turn) -> Any:
        """Carry out one turn and return its result."""

    async def close(self) -> None:
        """Called when a worker ends."""


class Reported(Exception):
    """A failure that was already put into words elsewhere, with the retry that was asked for there."""

    def __init__(self, info: ErrorInfo, after_seconds: float | None = None) -> None:
        super().__init__(info.message)
        self.info = info
        self.after_seconds = after_seconds
