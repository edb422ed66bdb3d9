"""Facts about a suspended turn: what it waits for, the answers, and that it resumes."""

from __future__ import annotations

from endwell.model.base import Fact
from endwell.model.task import Wait, WaitStatus


class TaskSuspended(Fact, frozen=True, kw_only=True):
    """The turn waits for answers and has let go of its worker.

    `count` is set where there are too many waits for one event: they follow in `wait.added`. `call_hashes`
    has, for each wait, the hash of the card that says what is asked; '' where there is none.
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
    """Some of the waits of a suspension that has many; `first` is the place of the first of them."""

    type = "wait.added"
    schema = 2  # 1 had no hashes
    first: int
    waits: tuple[Wait, ...]
    call_hashes: tuple[str, ...] = ()


class WaitAnswered(Fact, frozen=True, kw_only=True):
    """One awaited answer is there, or its deadline passed."""

    type = "wait.answered"
    schema = 2  # 1 had no hashes
    tool_call_id: str
    wait_status: WaitStatus
    result_card: str | None = None
    wait_by: int | None = None
    result_hash: str | None = None
    answer_card: str | None = None  # the answer as it came, of which the record says where it is
    answer_hash: str | None = None


class WaitExpired(Fact, frozen=True, kw_only=True):
    """Deadlines of waits passed: the inbox was told, except of calls whose tool.call card is missing."""

    type = "wait.timed_out"
    reported: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    wait_by: int | None = None


class TaskResumed(Fact, frozen=True, kw_only=True):
    """Nothing is waited for any more: the turn is queued to go on."""

    type = "task.resumed"
    epoch: int
    run_at: int
