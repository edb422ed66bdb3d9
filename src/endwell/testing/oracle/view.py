"""The oracle's view: the log as it grew, folded independently, beside the rows as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw
from msgspec.structs import replace

from endwell.machine.evolve import evolve
from endwell.model import facts as f
from endwell.model.approval import APPROVAL_FIELDS, ApprovalRow
from endwell.model.task import FIELDS, Task
from endwell.pmo.relay.messages import Outgoing
from endwell.policy.limits import Limits
from endwell.store.log import EVENT_FIELDS, Event
from endwell.store.reads.side_rows import DeadLetter, KeptWait, Key, SideRows
from endwell.testing.captured_log import CapturedLog
from endwell.testing.effect_sink import Outside
from endwell.testing.receiver import Receiver
from endwell.testing.redis.server import SimulatedRedis

_EVENTS: Final = f"SELECT seq, {', '.join(EVENT_FIELDS)} FROM events WHERE seq > ? ORDER BY seq"  # noqa: S608
_TASK: Final = f"SELECT {', '.join(FIELDS)} FROM tasks WHERE namespace = ? AND id = ?"  # noqa: S608
_TASKS: Final = f"SELECT {', '.join(FIELDS)} FROM tasks"  # noqa: S608
_APPROVALS: Final = f"SELECT {', '.join(APPROVAL_FIELDS)} FROM approvals"  # noqa: S608
_LETTERS: Final = f"SELECT {', '.join(DeadLetter.__struct_fields__)} FROM dead_letters"  # noqa: S608
_WAITS: Final = f"SELECT {', '.join(KeptWait.__struct_fields__)} FROM turn_waiting_tools"  # noqa: S608

ENDS: Final = (f.SucceededEnding, f.FailedEnding, f.TimedOutEnding, f.CancelledEnding)


class CommitStep(NamedTuple):
    """One event, and the task before and after it, as the oracle folds them."""

    event: Event
    fact: f.Fact
    before: Task | None
    after: Task


class OracleView:
    """`steps` are the newest transaction's events; `tasks` is the fold of the whole log so far."""

    def __init__(self, path: Path, outside: Outside, limits: Limits) -> None:
        self.outside = outside
        self.limits = limits
        self.now_us = 0
        self.tick_us = 0
        self.calm_since_us: int | None = None
        self.seq = 0
        self.steps_taken = 0
        self.steps_before = 0
        self.tasks: dict[str, Task] = {}
        self.beside = SideRows()
        self.steps: list[CommitStep] = []
        self.attempts: set[str] = set()
        self.accepted: dict[str, str] = {}
        self.expected: dict[str, Any] = {}
        self.recorded: set[tuple[str, str]] = set()
        self.ran_again: list[str] = []
        self.decided: dict[str, str] = {}
        self.agreed: dict[str, str] = {}
        self.is_alive: Callable[[int], bool] = lambda pid: False
        self.live_pids: frozenset[int] = frozenset()
        self.live_names: frozenset[str] = frozenset()
        self.log: CapturedLog | None = None
        self.streams: SimulatedRedis | None = None
        self.receiver: Receiver | None = None
        self.owed: dict[int, str] = {}
        self.bad_deliveries: list[str] = []
        self.still_here: list[str] = []
        self.files: list[str] = []
        self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)

    def close(self) -> None:
        self._connection.close()

    def read_new_events(self) -> bool:
        """Fold the events that were logged since the last call; return whether there were any."""
        rows = self.query_rows(_EVENTS, (self.seq,))
        self.seq = rows[-1][0] if rows else self.seq
        self.steps = [self._step(Event(*row[1:])) for row in rows]
        if self.receiver is not None:
            self._note_owed([row[0] for row in rows])
        return bool(self.steps)

    def take_steps(self) -> list[CommitStep]:
        """Return the steps of the newest transaction, once."""
        steps, self.steps = self.steps, []
        return steps

    def _note_owed(self, seqs: Sequence[int]) -> None:
        """Note that the relay owes a message: for each end of a turn, and of a task that ends without one."""
        turns = {step.event.command_id for step in self.steps if isinstance(step.fact, f.TurnEnded)}
        for seq, step in zip(seqs, self.steps, strict=True):
            is_end = isinstance(step.fact, ENDS) and step.event.command_id not in turns
            if is_end or isinstance(step.fact, f.TurnEnded):
                self.owed[seq] = f"{step.event.event_id}.task"

    def note_delivered(self, owner: str, message: Outgoing) -> None:
        """Check a message that the receiver is receiving at this moment."""
        event_id = message.id.rpartition(".")[0]
        task_id, _, version = event_id.rpartition(".")
        task = self.tasks.get(task_id)
        if task is None or task.version < int(version):
            self.bad_deliveries.append(f"{message.id} was sent by {owner} before it was committed")
        known = self.receiver.bodies.get(message.id) if self.receiver is not None else None
        if known is not None and known != message.body:
            self.bad_deliveries.append(f"{message.id} was sent in two versions, the second by {owner}")

    def _step(self, event: Event) -> CommitStep:
        fact = event.fact
        before = self.tasks.get(event.task_id)
        after = evolve(before, fact, event.at, namespace=event.namespace, task_id=event.task_id)
        after = replace(after, head_hash=event.hash)
        self.tasks[event.task_id] = after
        self.beside.take(before, after, fact, event.at)
        return CommitStep(event, fact, before, after)

    def note_open_sessions(self) -> None:
        """Note sessions that are still open; those of foreign workers (pid 0) are never closed."""
        rows = self.query_rows("SELECT name FROM sessions WHERE ended_at IS NULL AND pid != 0")
        self.still_here += [f"a session of {row[0]}" for row in rows]

    def note_run(self, task_id: str, attempt_id: str, step: str) -> None:
        """Check the function of a step, which begins at this moment."""
        task = self.tasks.get(task_id)
        if task is not None and task.attempt_id == attempt_id and (task_id, step) in self.recorded:
            self.ran_again.append(f"step {step} of {task_id} ran again under {attempt_id}")

    def read_row(self, task_id: str) -> Task | None:
        """Read the row of a task."""
        rows = self.query_rows(_TASK, ("default", task_id))
        return Task(*rows[0]) if rows else None

    def read_all_rows(self) -> list[Task]:
        """Read the rows of all tasks."""
        return [Task(*row) for row in self.query_rows(_TASKS)]

    def side_rows(self) -> dict[Key, Any]:
        """Read the rows of approvals, dead letters and waits."""
        approvals = [ApprovalRow(*row) for row in self.query_rows(_APPROVALS)]
        found: dict[Key, Any] = {("approval", row.id): row for row in approvals}
        found |= {("dead_letter", row[0]): DeadLetter(*row) for row in self.query_rows(_LETTERS)}
        return found | {("wait", *row[:2]): KeptWait(*row) for row in self.query_rows(_WAITS)}

    def query_rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Ask the database anything else."""
        return self._connection.execute(sql, tuple(values)).fetchall()


def plain_name(step: str) -> str:
    """Return the name that an agent gave a step, without run, branch and number."""
    return step.partition(":")[2].rpartition(")")[2].partition("#")[0]
