"""A turn that this process holds, and the runner of agents whose turns are carried out outside the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from endwell.model.commands import TaskCommand
from endwell.model.inside import deliveries_along, origin_at
from endwell.model.task import ErrorInfo, Task
from endwell.runtime.current import CurrentTurn
from endwell.turn.recorder import Recorder
from endwell.turn.threads import TurnThreads

LeaseLeft = Callable[[], float]
"""Seconds that the worker's lease still holds, by its own clock."""
AnyCommand = TypeVar("AnyCommand", bound=TaskCommand)


@dataclass(slots=True, eq=False)
class HeldTurn:
    """One attempt, and the asyncio task that runs it."""

    task: Task
    payload: bytes
    actor: str
    lease_left: LeaseLeft
    has_begun: bool = False
    is_lost: bool = False
    is_over: bool = False
    is_in_thread: bool = False
    recorder: Recorder | None = None
    threads: TurnThreads | None = None
    verbs: set[asyncio.Task[Any] | None] = field(default_factory=set)
    runner: asyncio.Task[None] | None = None

    @property
    def attempt_id(self) -> str:
        return self.task.attempt_id or ""

    def lasts_for(self, seconds: float) -> bool:
        """Whether the attempt keeps its task for this long, even if the store is not reached again."""
        return self.seconds_left >= seconds

    @property
    def seconds_left(self) -> float:
        """How long the attempt surely keeps its task; below zero when it is lost."""
        return -1.0 if self.is_lost else self.lease_left()

    async def refresh(self) -> None:
        """Nothing to ask: the worker's own clock says what is left of the lease."""

    @property
    def has_threads(self) -> bool:
        """Whether a function of the turn is in a thread, where it cannot be ended."""
        return self.is_in_thread or (self.threads is not None and self.threads.is_busy)

    def mark_lost(self) -> None:
        """The attempt has lost its task: cancel what can be cancelled."""
        self.is_lost = True
        for task in (self.runner, *self.verbs):
            if task is not None:
                task.cancel()
        if self.recorder is not None:
            self.recorder.runs.cancel()

    def final_command(self, kind: Callable[..., AnyCommand], **fields: Any) -> AnyCommand:
        """A command that ends the turn. An attempt ends once, so its id names its end too."""
        return kind(
            command_id=f"{self.attempt_id}.end",
            namespace=self.task.namespace,
            actor=self.actor,
            task_id=self.task.id,
            attempt_id=self.attempt_id,
            **fields,
        )


def current_turn(task: Task) -> CurrentTurn:
    """What the code of a turn is traced by."""
    attempt_id = task.attempt_id or ""
    return CurrentTurn(task.id, attempt_id, task.namespace, deliveries_along(task), origin_at(task))


class OutsideRunner(Protocol):
    """Carries out turns outside the worker: in a program, or in a process of its own."""

    async def prepare(self) -> None:
        """Called when a worker starts; refuses what can never work as `UsageError`."""

    async def run(self, recorder: Recorder, turn: HeldTurn) -> Any:
        """Carry out one turn and return its result; leaves nothing behind, however it ends."""

    async def close(self) -> None:
        """Called when a worker ends."""


class ReportedFailure(Exception):
    """A failure that was put into words outside, with the retry that was asked for there."""

    def __init__(self, info: ErrorInfo, after_seconds: float | None = None) -> None:
        super().__init__(info.message)
        self.info = info
        self.after_seconds = after_seconds
