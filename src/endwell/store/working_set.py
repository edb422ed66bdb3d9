"""The rows of one batch while it is decided: what was read, and what its commands made of it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from msgspec.structs import astuple, replace

from endwell.machine.decision import Closing, Decision
from endwell.machine.evolve import evolve, fold, stamp
from endwell.machine.evolve_rows import EFFECT_FACTS, EffectFact, evolve_effect
from endwell.machine.table import FENCED
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.approval import ApprovalRow
from endwell.model.cursor import Cursor
from endwell.model.effect import Effect
from endwell.model.message import Message
from endwell.model.names import by_channel
from endwell.model.session import Session
from endwell.model.task import Task, has_wait_rows
from endwell.policy.approval import Guard, guard_of
from endwell.store.log import Event, EventRow, seal
from endwell.store.projections import PROJECTIONS, Row, ledger_row
from endwell.store.rows import HolderKey, Rows, TaskKey, Writes
from endwell.store.wait_rows import Waits

_WITH_OTHER_ROWS: Final = frozenset((*EFFECT_FACTS, *PROJECTIONS))
_WAIT_FACTS: Final = frozenset((f.WaitsAdded, f.WaitAnswered, f.WaitExpired))
_OPEN_TO_CLAIMS: Final = frozenset((s.QUEUED, s.DISPATCHED))


class WorkingSet:
    """Reads see the batch's own changes; `collect_writes()` has each changed row once, in its last state."""

    def __init__(self, rows: Rows, now: int) -> None:
        self.now = now
        self._rows = rows
        self._tasks: dict[TaskKey, Task] = {}
        self._seen_version: dict[TaskKey, int] = {}
        self._by_key: dict[TaskKey, TaskKey] = {}
        self._holders: dict[HolderKey, str | None] = {}
        self.sessions: dict[TaskKey, Session] = {}
        self.cursors: dict[TaskKey, Cursor] = {}
        self._tallies: dict[str, tuple[int, int]] = {}
        self.agents: list[tuple[str, int, c.AgentSpec]] = []
        self.bells: set[str] = set()
        self._effects: dict[TaskKey, Effect] = {}
        self._events: list[EventRow] = []
        self.waits = Waits(rows)
        self._sent: set[tuple[str, str, str]] = set()
        self._writes = Writes()

    def task(self, namespace: str, task_id: str) -> Task | None:
        key = (namespace, task_id)
        return self._tasks.get(key) or self._rows.tasks.get(key)

    def current_task(self, task: Task) -> Task:
        """The row in its current state in this batch."""
        return self._tasks.get((task.namespace, task.id), task)

    def task_by_key(self, namespace: str, key: str) -> Task | None:
        made = self._by_key.get((namespace, key))
        if made is not None:
            return self._tasks[made]
        found = self._rows.keys.get((namespace, key))
        return None if found is None else self.current_task(found)

    def session(self, namespace: str, session_id: str) -> Session | None:
        key = (namespace, session_id)
        return self.sessions.get(key) or self._rows.sessions.get(key)

    def cursor(self, namespace: str, name: str) -> Cursor | None:
        key = (namespace, name)
        return self.cursors.get(key) or self._rows.cursors.get(key)

    def key_holder(self, task: Task) -> str | None:
        """The task whose turn holds this task's agent key."""
        if task.agent_key is None:
            return None
        key = (task.namespace, task.agent, task.agent_key)
        return self._holders[key] if key in self._holders else self._rows.holders.get(key)

    def effect(self, namespace: str, key: str) -> Effect | None:
        return self._effects.get((namespace, key)) or self._rows.effects.get((namespace, key))

    def restored_at(self, namespace: str) -> int | None:
        """When the namespace was last restored from a backup."""
        return self._rows.restored_at.get(namespace)

    def messages(self, namespace: str, task_id: str) -> tuple[Message, ...]:
        """The task's pending messages, as read."""
        return tuple(self._rows.inbox.get((namespace, task_id), ()))

    def message(self, command: c.Deliver | c.SkipMessage) -> Message | None:
        """One pending message of the command's task, as read."""
        found = self._rows.messages.get((command.namespace, command.message_id))
        return found if found is not None and found.task_id == command.task_id else None

    def calls(self, namespace: str, task_id: str) -> frozenset[str]:
        """The `tool.call` cards of a task."""
        return frozenset(self._rows.calls.get((namespace, task_id), ()))

    def children(self, namespace: str, task_id: str) -> list[Task]:
        """The task's children that had not ended when they were read."""
        return [self.current_task(child) for child in self._rows.children.get((namespace, task_id), ())]

    def rules(self, namespace: str, agent: str) -> tuple[Guard, ...]:
        """The approval rules that workers have registered for an agent, the oldest first."""
        texts = self._rows.rules.get((namespace, agent))
        return tuple(map(guard_of, texts)) if texts else ()

    def approval(self, namespace: str, task_id: str) -> ApprovalRow | None:
        """The approval that was requested before the task could start."""
        return self._rows.approvals.get((namespace, task_id))

    def is_limited(self, task: Task) -> bool:
        return (task.namespace, task.agent) in self._rows.free_slots

    def take_slot(self, task: Task) -> int | None:
        free = self._rows.free_slots[(task.namespace, task.agent)]
        return free.pop(0) if free else None

    def give_slot_back(self, task: Task, slot: int) -> None:
        self._rows.free_slots[(task.namespace, task.agent)].insert(0, slot)

    def record(self, before: Task | None, decision: Decision, command: c.TaskCommand) -> Task:
        """Fold the facts into the task, seal an event for each, and note the rows that follow."""
        at, version, head = self.now, 0, b""
        if before is not None:
            version, head = before.version, before.head_hash
            if before.updated_at > at:
                at = before.updated_at
        said_by = getattr(command, "attempt_id", None)
        task, events, side = before, [], list[Row]()
        for fact in decision.facts:
            previous, kind = task, type(fact)
            task = fold(task, fact, at, command.namespace, command.task_id)
            version += 1
            event = seal(task, version, fact, command, at, said_by or task.attempt_id, head)
            head = event[-1]
            events.append(event)
            if kind in _WITH_OTHER_ROWS:
                side += self._other_rows(previous or task, task, fact, at)
        if task is None:
            raise ValueError("a decision without facts cannot be recorded")
        task = stamp(task, version, at, head)
        self._keep_task(before, task, command)
        self._events += events
        self._send_all(decision, side)
        return task

    def _other_rows(self, before: Task, after: Task, fact: f.Fact, at: int) -> list[Row]:
        """Rows of other tables that follow from a fact."""
        kind = type(fact)
        if kind in EFFECT_FACTS:
            self._fold_effect(fact, before, at)  # type: ignore[arg-type]
        if kind in _WAIT_FACTS and has_wait_rows(after):
            self.waits.fold(after, fact)  # type: ignore[arg-type]
        return PROJECTIONS[kind](before, after, fact, at) if kind in PROJECTIONS else []

    def adopt(self, before: Task | None, events: list[Event], command: c.TaskCommand) -> Task:
        """Fold events that another store has sealed, and keep them as they are."""
        facts: list[f.Fact] = [event.fact for event in events]
        task, side = before, list[Row]()
        for event, fact in zip(events, facts, strict=True):
            previous = task
            task = evolve(task, fact, event.at, namespace=event.namespace, task_id=event.task_id)
            task = replace(task, head_hash=event.hash)
            side += self._other_rows(previous or task, task, fact, event.at)
        if task is None:
            raise ValueError("there is nothing to adopt")
        self._keep_task(before, task, command)
        self._events += [astuple(event) for event in events]
        self._send_all(Decision(), side)
        return task

    def _send_all(self, decision: Decision, side: list[Row]) -> None:
        if decision.cards or decision.messages:
            self.send(decision)
        for query, row in side:
            self.add_row(query, row)

    def send(self, decision: Decision) -> None:
        """Write the cards and messages of a decision, which may have no facts."""
        self._writes.cards += decision.cards
        for message in decision.messages:
            known_as = (message.namespace, message.message_type, message.correlation_id)
            if known_as not in self._sent:  # only the first of its kind counts
                self._sent.add(known_as)
                self._writes.messages.append(message)
                ledger = ledger_row(message)
                if ledger is not None:
                    self.add_row(*ledger)

    def close(self, namespace: str, closed: tuple[Closing, ...]) -> None:
        """Close messages and the resume-ledger rows that belong to them."""
        for closing in closed:
            message = (closing.status, closing.why, self.now, namespace, closing.message_id)
            self.add_row("close_message", message)
            status = "applied" if closing.why is None else "dropped"
            self.add_row("close_resume", (status, self.now, namespace, closing.message_id))

    def add_row(self, query: str, row: tuple[Any, ...]) -> None:
        """Add a row for one of the side queries."""
        self._writes.side.setdefault(query, []).append(row)

    def _fold_effect(self, fact: EffectFact, task: Task, at: int) -> None:
        """Fold a fact into an effect; one in flight that was not read is marked as unknown by a query."""
        key = (task.namespace, fact.key)
        known = self.effect(*key)
        if known is None and isinstance(fact, f.EffectDoubted):
            self.add_row("doubt_effect", (at, task.namespace, fact.key, task.id))
            return
        self._effects[key] = evolve_effect(known, fact, task, at)

    def _keep_task(self, before: Task | None, task: Task, command: c.TaskCommand) -> None:
        key = (task.namespace, task.id)
        if key not in self._tasks:
            self._seen_version[key] = 0 if before is None else before.version
        self._tasks[key] = task
        if task.agent_key is not None and (task.turn_id or self.key_holder(task) == task.id):
            self._holders[(task.namespace, task.agent, task.agent_key)] = task.id if task.turn_id else None
        if before is None:
            if isinstance(command, c.Submit) and command.key is not None:
                self._by_key[(task.namespace, command.key)] = key
            self._count_task(task, accepted=1)
        elif task.clock_at is None and before.clock_at is not None:
            self._count_task(task)
        old = None if before is None else before.slot
        if old != task.slot:
            self._move_slot(old, task)
        self._note_bells(before, task, command)

    def _count_task(self, task: Task, accepted: int = 0) -> None:
        """Count a task as accepted or ended; a task without a clock has ended."""
        counted = self._tallies.get(task.namespace, (0, 0))
        self._tallies[task.namespace] = (counted[0] + accepted, counted[1] + (task.clock_at is None))

    def _move_slot(self, old: int | None, task: Task) -> None:
        if old is not None:
            self._writes.slots.append((None, task.namespace, task.agent, old))
        if task.slot is not None:
            self._writes.slots.append((task.id, task.namespace, task.agent, task.slot))

    def _note_bells(self, before: Task | None, task: Task, command: c.TaskCommand) -> None:
        """Ring for the worker that lost the task, those that may claim it, or those that wait for its end."""
        is_released = before is not None and before.attempt_id and task.attempt_id != before.attempt_id
        if is_released and before is not None and type(command) not in FENCED:
            self.bells.add(f"held:{task.namespace}:{before.session_id}")
        status = task.status
        if status == s.RUNNING:
            return
        if type(command) is c.Dispatch and command.is_streamed:
            return  # the stream itself wakes the consumers
        if status in _OPEN_TO_CLAIMS:
            self.bells.add(_work_topic(task.namespace, task.agent, task.channel))
        elif status in s.TERMINAL:
            self.bells.add(f"ended:{task.namespace}")
            if before is not None and (before.slot is not None or before.agent_key is not None):
                self.bells.add(_work_topic(task.namespace, task.agent, task.channel))

    def collect_writes(self) -> Writes:
        """All rows to write, each task row once."""
        writes = self._writes
        for key, task in self._tasks.items():
            seen = self._seen_version[key]
            if seen == 0:
                writes.created.append(task)
            else:
                writes.moved.append((task, seen))
        for effect_key, effect in self._effects.items():
            is_new = effect_key not in self._rows.effects
            (writes.effects_added if is_new else writes.effects_moved).append(effect)
        writes.events = self._events
        writes.sessions = list(self.sessions.values())
        writes.agents = self.agents
        writes.cursors = list(self.cursors.values())
        writes.tallies, writes.now = self._tallies, self.now
        return writes


@lru_cache(maxsize=256)
def _work_topic(namespace: str, agent: str, channel: str) -> str:
    """The topic for workers of an agent; it names a channel other than the default one."""
    return f"work:{namespace}:{by_channel(agent, channel)}"


def replay(events: list[Event]) -> Task | None:
    """Fold a task's log: the row in the store must equal the result."""
    task: Task | None = None
    for event in events:
        fact: f.Fact = event.fact
        task = evolve(task, fact, event.at, namespace=event.namespace, task_id=event.task_id)
        task = replace(task, head_hash=event.hash)
    return task
