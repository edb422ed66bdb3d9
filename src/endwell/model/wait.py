"""Waits: what a suspended turn waits for, the call that asks for it, and the facts about it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from endwell.model.base import Fact

WaitStatus = Literal["waiting", "received", "expired", "applied", "dropped"]
WaitKind = Literal["tool", "call", "approval", "timer", "signal"]


class Wait(msgspec.Struct, frozen=True, omit_defaults=True):
    """One awaited answer with its own deadline.

    `name` is the tool, agent or signal. `is_reported`: the deadline passed, and the inbox holds a report.
    """

    tool_call_id: str
    kind: WaitKind
    deadline: int
    wait_status: WaitStatus = "waiting"
    result_card: str | None = None
    name: str = ""
    is_reported: bool = False

    @property
    def is_open(self) -> bool:
        """Whether an answer would still count."""
        return self.wait_status == "waiting"

    @property
    def is_answered(self) -> bool:
        """Whether an answer or the deadline settled it; blocking a turn drops its waits instead."""
        return self.wait_status in ("applied", "expired")


class WaitRows(msgspec.Struct, frozen=True):
    """What the task's row keeps of waits that have rows of their own: how many are open."""

    open: int


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One wait that a suspending turn asks for, with its content: arguments, or what approvers are shown."""

    tool_call_id: str
    kind: WaitKind
    within: int
    name: str = ""
    content: bytes | None = None
    content_hash: str = ""
    by: tuple[str, ...] = ()
    quorum: int = 1
    is_child: bool = False


class TaskSuspended(Fact, frozen=True, kw_only=True):
    """The turn waits for answers and released its worker.

    `count` is set where there are too many waits for one event: `wait.added` events list them. `call_hashes`
    has one hash per wait, of the card with the call's content; '' where there is none.
    """

    type = "task.suspended"
    schema = 2  # 1 had no hashes
    waits: tuple[Wait, ...]
    wait_by: int
    suspend_by: int
    children: int = 0
    count: int | None = None
    call_hashes: tuple[str, ...] = ()

    @property
    def wait_count(self) -> int:
        """How many answers the turn waits for."""
        return len(self.waits) if self.count is None else self.count


class WaitsAdded(Fact, frozen=True, kw_only=True):
    """A part of the waits of a suspension that has many; `first` is the position of the part."""

    type = "wait.added"
    schema = 2  # 1 had no hashes
    first: int
    waits: tuple[Wait, ...]
    call_hashes: tuple[str, ...] = ()


class WaitAnswered(Fact, frozen=True, kw_only=True):
    """One wait was settled, by an answer or by its deadline."""

    type = "wait.answered"
    schema = 2  # 1 had no hashes
    tool_call_id: str
    wait_status: WaitStatus
    result_card: str | None = None
    wait_by: int | None = None
    result_hash: str | None = None
    answer_card: str | None = None  # the answer as it arrived, which the result card refers to
    answer_hash: str | None = None


class WaitExpired(Fact, frozen=True, kw_only=True):
    """Deadlines passed: the inbox got a report of each wait, except where its tool.call card is missing."""

    type = "wait.timed_out"
    reported: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    wait_by: int | None = None


class TaskResumed(Fact, frozen=True, kw_only=True):
    """No wait is open any more: the turn is queued to continue."""

    type = "task.resumed"
    epoch: int
    run_at: int


WAIT_FIELDS: Final[tuple[str, ...]] = Wait.__struct_fields__
