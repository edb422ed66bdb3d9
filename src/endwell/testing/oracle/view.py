"""What the oracle knows: the log as it grew, folded by itself, beside the rows as they are."""

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
from endwell.store.side_rows import DeadLetter, KeptWait, Key, RowsBeside
from endwell.testing.effect_sink import Outside
from endwell.testing.log import Overheard
from endwell.testing.receiver import Receiver
from endwell.testing.redis.server import Server

_EVENTS: Final = f"SELECT seq, {', '.join(EVENT_FIELDS)} FROM events WHERE seq > ? ORDER BY seq"  # noqa: S608
_TASK: Final = f"SELECT {', '.join(FIELDS)} FROM tasks WHERE namespace = ? AND id = ?"  # noqa: S608
_TASKS: Final = f"SELECT {', '.join(FIELDS)} FROM tasks"  # noqa: S608
_APPROVALS: Final = f"SELECT {', '.join(APPROVAL_FIELDS)} FROM approvals"  # noqa: S608
_LETTERS: Final = f"SELECT {', '.join(DeadLetter.__struct_fields__)} FROM dead_letters"  # noqa: S608
_WAITS: Final = f"SELECT {', '.join(KeptWait.__struct_fields__)} FROM turn_waiting_tools"  # noqa: S608

ENDS: Final = (f.SucceededEnding, f.FailedEnding, f.TimedOutEnding, f.CancelledEnding)


class CommitStep(NamedTuple):
    """One event: what it says, and the task before and after it, as the oracle folds it."""

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
        self.beside = RowsBeside()
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
        self.log: Overheard | None = None
        self.streams: Server | None = None
        self.receiver: Receiver | None = None
        self.owed: dict[int, str] = {}
        self.told_badly: list[str] = []
        self.still_here: list[str] = []
        self.files: list[str] = []
        self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)

    def close(self) -> None:
        self._connection.close()

    def look(self) -> bool:
        """Take in what was logged since the last look; whether there was anything."""
        rows = self._new()
        self.steps = [self._step(Event(*row[1:])) for row in rows]
        if self.receiver is not None:
            self._note_owed([row[0] for row in rows])
        return bool(self.steps)

    def _note_owed(self, seqs: Sequence[int]) -> None:
        """Each end of a turn, and each end of a task that had none, must be told outside."""
        turns = {step.event.command_id for step in self.steps if isinstance(step.fact, f.TurnEnded)}
        for seq, step in zip(seqs, self.steps, strict=True):
            is_end = isinstance(step.fact, ENDS) and step.event.command_id not in turns
            if is_end or isinstance(step.fact, f.TurnEnded):
                self.owed[seq] = f"{step.event.event_id}.task"

    def note_told(self, owner: str, message: Outgoing) -> None:
        """Somebody outside is being told something, at this very moment."""
        event_id = message.id.rpartition(".")[0]
        task_id, _, version = event_id.rpartition(".")
        task = self.tasks.get(task_id)
        if task is None or task.version < int(version):
            self.told_badly.append(f"{message.id} was told by {owner} before it was committed")
        known = self.receiver.bodies.get(message.id) if self.receiver is not None else None
        if known is not None and known != message.body:
            self.told_badly.append(f"{message.id} was told in two ways, the second time by {owner}")

    def _new(self) -> list[tuple[Any, ...]]:
        rows = self.ask(_EVENTS, (self.seq,))
        if rows:
            self.seq = rows[-1][0]
        return rows

    def _step(self, event: Event) -> CommitStep:
        fact = event.fact
        before = self.tasks.get(event.task_id)
        after = evolve(before, fact, event.at, namespace=event.namespace, task_id=event.task_id)
        after = replace(after, head_hash=event.hash)
        self.tasks[event.task_id] = after
        self.beside.take(before, after, fact, event.at)
        return CommitStep(event, fact, before, after)

    def look_at_sessions(self) -> None:
        """Whose session is open although nobody is there; foreign workers say no goodbye."""
        rows = self.ask("SELECT name FROM sessions WHERE ended_at IS NULL AND pid != 0")
        self.still_here += [f"a session of {row[0]}" for row in rows]

    def note_run(self, task_id: str, attempt_id: str, step: str) -> None:
        """A step's function begins, at this very moment."""
        task = self.tasks.get(task_id)
        if task is not None and task.attempt_id == attempt_id and (task_id, step) in self.recorded:
            self.ran_again.append(f"step {step} of {task_id} ran again under {attempt_id}")

    def row(self, task_id: str) -> Task | None:
        """The task as its row says."""
        rows = self.ask(_TASK, ("default", task_id))
        return Task(*rows[0]) if rows else None

    def all_rows(self) -> list[Task]:
        """Every task as its row says."""
        return [Task(*row) for row in self.ask(_TASKS)]

    def rows_beside(self) -> dict[Key, Any]:
        """Approvals, dead letters and waits as their rows say."""
        approvals = [ApprovalRow(*row) for row in self.ask(_APPROVALS)]
        found: dict[Key, Any] = {("approval", row.id): row for row in approvals}
        found |= {("dead_letter", row[0]): DeadLetter(*row) for row in self.ask(_LETTERS)}
        return found | {("wait", *row[:2]): KeptWait(*row) for row in self.ask(_WAITS)}

    def ask(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Anything else."""
        return self._connection.execute(sql, tuple(values)).fetchall()


def plain_name(step: str) -> str:
    """The name that an agent gave a step: without run, branch and number."""
    return step.partition(":")[2].rpartition(")")[2].partition("#")[0]
