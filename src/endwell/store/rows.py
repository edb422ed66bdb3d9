"""What passes between the door and its drivers: rows to read, rows read, rows to write, replies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from endwell.errors import EndwellError
from endwell.model.approval import ApprovalRow
from endwell.model.card import Card
from endwell.model.commands import AgentSpec, ClaimNext, Command, DispatchNext
from endwell.model.cursor import Cursor
from endwell.model.effect import Effect
from endwell.model.message import Message
from endwell.model.session import Session
from endwell.model.task import Task
from endwell.model.wait import Wait
from endwell.policy.ledger import LedgerAnswer
from endwell.store.log import Event, EventRow

TaskKey = tuple[str, str]
"""Namespace and task id."""
HolderKey = tuple[str, str, str]
"""Namespace, agent and agent key."""
WaitKey = tuple[str, str, str]
"""Namespace, turn and call; or the name of a signal in the call's place."""


class Wanted(msgspec.Struct):
    """The rows that a batch of commands needs to be decided on."""

    tasks: set[TaskKey] = msgspec.field(default_factory=set)
    # of the tasks above: the attempt, if it is the only sender for its task; else None
    attempts: dict[TaskKey, str | None] = msgspec.field(default_factory=dict)
    keys: set[TaskKey] = msgspec.field(default_factory=set)
    sessions: set[TaskKey] = msgspec.field(default_factory=set)
    held_by: set[TaskKey] = msgspec.field(default_factory=set)
    ready: list[ClaimNext | DispatchNext] = msgspec.field(default_factory=list)
    effects: set[TaskKey] = msgspec.field(default_factory=set)
    # tasks whose pending messages, `tool.call` cards, or living children are asked for
    inbox: set[TaskKey] = msgspec.field(default_factory=set)
    calls: set[TaskKey] = msgspec.field(default_factory=set)
    # single messages; calls and signals of tasks whose waits may be rows of their own
    messages: dict[TaskKey, TaskKey] = msgspec.field(default_factory=dict)
    answers: set[tuple[TaskKey, str]] = msgspec.field(default_factory=set)
    signals: list[tuple[TaskKey, str]] = msgspec.field(default_factory=list)
    children: set[TaskKey] = msgspec.field(default_factory=set)
    cursors: set[TaskKey] = msgspec.field(default_factory=set)
    # agents whose approval rules are asked for; tasks to be replayed, with what was asked about them
    rules: set[TaskKey] = msgspec.field(default_factory=set)
    replays: set[TaskKey] = msgspec.field(default_factory=set)
    # tasks that may be started, by their ids
    starts: set[TaskKey] = msgspec.field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        """Whether the batch can be decided without reading any row."""
        rows = (self.tasks, self.keys, self.sessions, self.held_by)
        return not any((*rows, self.ready, self.children, self.cursors, self.rules))


LITTLE_BYTES = 16_384
"""At most this many bytes of a deliverable are read with its task; many may be waited for at once."""


class Offer(msgspec.Struct, frozen=True, gc=False):
    """A ready task with its payload."""

    task: Task
    payload: bytes


class Rows(msgspec.Struct):
    """What the driver read, in the transaction that will write."""

    tasks: dict[TaskKey, Task] = msgspec.field(default_factory=dict)
    keys: dict[TaskKey, Task] = msgspec.field(default_factory=dict)
    sessions: dict[TaskKey, Session] = msgspec.field(default_factory=dict)
    held_by: dict[TaskKey, list[Task]] = msgspec.field(default_factory=dict)
    holders: dict[HolderKey, str] = msgspec.field(default_factory=dict)
    ready: dict[str, list[Offer]] = msgspec.field(default_factory=dict)
    free_slots: dict[tuple[str, str], list[int]] = msgspec.field(default_factory=dict)
    # by namespace: whether a task close to its crash limit is offered to workers or held by one
    suspect_out: dict[str, bool] = msgspec.field(default_factory=dict)
    effects: dict[TaskKey, Effect] = msgspec.field(default_factory=dict)
    # by namespace: when its record was last restored from a backup
    restored_at: dict[str, int] = msgspec.field(default_factory=dict)
    inbox: dict[TaskKey, list[Message]] = msgspec.field(default_factory=dict)
    calls: dict[TaskKey, set[str]] = msgspec.field(default_factory=dict)
    messages: dict[TaskKey, Message] = msgspec.field(default_factory=dict)
    waits: dict[WaitKey, Wait] = msgspec.field(default_factory=dict)
    signals: dict[WaitKey, list[Wait]] = msgspec.field(default_factory=dict)
    # the next waits of a turn by deadline, and one more
    next_waits: dict[TaskKey, list[Wait]] = msgspec.field(default_factory=dict)
    children: dict[TaskKey, list[Task]] = msgspec.field(default_factory=dict)
    cursors: dict[TaskKey, Cursor] = msgspec.field(default_factory=dict)
    # oldest registration first
    rules: dict[TaskKey, list[str]] = msgspec.field(default_factory=dict)
    approvals: dict[TaskKey, ApprovalRow] = msgspec.field(default_factory=dict)

    def wanted_rules(self, want: Wanted) -> set[TaskKey]:
        """The agents whose rules must be read, once the tasks to be replayed or started are known."""
        replayed = [task for key in want.replays if (task := self.tasks.get(key)) is not None]
        agents = {(task.namespace, task.agent) for task in (*replayed, *self._unstarted_tasks(want))}
        return (want.rules | agents) - self.rules.keys()

    def wanted_approvals(self, want: Wanted) -> set[TaskKey]:
        """The tasks whose approvals must be read, once the rules are known."""
        starting = (
            task for task in self._unstarted_tasks(want) if self.rules.get((task.namespace, task.agent))
        )
        return want.replays | {(task.namespace, task.id) for task in starting}

    def _unstarted_tasks(self, want: Wanted) -> Iterator[Task]:
        """The tasks that this batch may start for the first time."""
        named = (task for key in want.starts if (task := self.tasks.get(key)) is not None)
        offered = (offer.task for offers in self.ready.values() for offer in offers)
        return (task for task in (*named, *offered) if task.started_at is None)


class Writes(msgspec.Struct):
    """Rows to insert, update or delete, in one transaction."""

    created: list[Task] = msgspec.field(default_factory=list)
    moved: list[tuple[Task, int]] = msgspec.field(default_factory=list)
    events: list[EventRow] = msgspec.field(default_factory=list)
    cards: list[Card] = msgspec.field(default_factory=list)
    slots: list[tuple[str | None, str, str, int]] = msgspec.field(default_factory=list)
    sessions: list[Session] = msgspec.field(default_factory=list)
    agents: list[tuple[str, int, AgentSpec]] = msgspec.field(default_factory=list)
    effects_added: list[Effect] = msgspec.field(default_factory=list)
    effects_moved: list[Effect] = msgspec.field(default_factory=list)
    messages: list[Message] = msgspec.field(default_factory=list)
    side: dict[str, list[tuple[Any, ...]]] = msgspec.field(default_factory=dict)
    cursors: list[Cursor] = msgspec.field(default_factory=list)
    # by namespace: how many tasks the batch accepts, and how many it ends
    tallies: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    now: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write; tallies never come alone."""
        folded = (self.created, self.moved, self.events, self.effects_added, self.effects_moved, self.slots)
        others = (self.cards, self.messages, self.side, self.sessions, self.agents, self.cursors)
        return not any((*folded, *others))

    @property
    def presence_query(self) -> tuple[str, tuple[Any, ...]] | None:
        """A query that finds one of these rows if the transaction was committed."""
        if self.events:
            event = Event(*self.events[0])
            return "event_is_stored", (event.namespace, event.task_id, event.version, event.hash)
        if self.sessions:
            one = self.sessions[0]
            return "session_is_stored", (one.namespace, one.id, one.heartbeat_at, one.unnamed, one.ended_at)
        if self.cursors:
            cursor = self.cursors[0]
            where = (cursor.namespace, cursor.name, cursor.holder, cursor.fence)
            return "cursor_is_stored", (*where, cursor.position, cursor.lease_until)
        return None  # registering agents twice changes nothing


class Reply(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one command.

    `follow` are commands to other tasks, each for a commit of its own; a message in the inbox is the net.
    """

    task: Task | None = None
    refusal: EndwellError | None = None
    is_new: bool = False
    taken: tuple[Offer, ...] = ()
    session: Session | None = None
    cursor: Cursor | None = None
    stale: tuple[str, ...] = ()
    passed_over: int = 0
    ledger: LedgerAnswer | None = None
    follow: tuple[Command, ...] = ()

    def unwrap(self) -> Task:
        """The task; raises the refusal if there is one."""
        if self.refusal is not None:
            raise self.refusal
        if self.task is None:
            raise EndwellError("the command concerns no task")
        return self.task


class Outcome(msgspec.Struct):
    """The outcome of one batch."""

    replies: list[Reply]
    writes: Writes
    bells: set[str]


def ready_limit(command: ClaimNext | DispatchNext) -> int:
    """How many ready tasks to read: those that the last claim left to other workers come first."""
    return command.limit + (command.passed_over if isinstance(command, ClaimNext) else 0)
