"""The base classes of commands and facts."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Command(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request to change something. `actor` is who sends it: a worker, a PMO, a person."""

    command_id: str
    namespace: str
    actor: str = ""
    causation_id: str | None = None


class TaskCommand(Command, frozen=True, kw_only=True):
    """A command to one task."""

    task_id: str


class AttemptCommand(TaskCommand, frozen=True, kw_only=True):
    """A command about one attempt at a task, mostly by that attempt itself."""

    attempt_id: str


class Fact(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What happened. Its JSON is the event's `data`."""

    type: ClassVar[str] = ""
    schema: ClassVar[int] = 1
