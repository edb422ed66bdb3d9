"""Questions to the store, the same on every database. Each is one named query."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from endwell.errors import NotFound
from endwell.model.approval import ApprovalRow
from endwell.model.card import Card
from endwell.model.commands import AgentSpec
from endwell.model.cursor import Cursor
from endwell.model.effect import Effect
from endwell.model.inside import effect_it_is_held_for
from endwell.model.message import InboxRow, Message
from endwell.model.session import Session
from endwell.model.task import Task
from endwell.model.wait import Wait
from endwell.store.log import Event
from endwell.store.probe import Probe, ProbeResult
from endwell.store.rows import LITTLE_BYTES
from endwell.store.side_row_reads import BesideReads
from endwell.store.side_rows import DeadLetter
from endwell.store.turns import TurnRecord, turns_in


class OpenCall(msgspec.Struct, frozen=True):
    """A tool call that somebody is to answer."""

    tool_call_id: str
    task_id: str
    tool: str
    deadline: int
    created_at: int


class WaitRow(msgspec.Struct, frozen=True):
    """One row of `turn_waiting_tools`."""

    tool_call_id: str
    turn_id: str
    kind: str
    name: str
    deadline: int
    wait_status: str
    result_card: str | None
    created_at: int
    updated_at: int


class PendingRow(msgspec.Struct, frozen=True):
    """A message that has been pending for long, and what is known of its task."""

    id: str
    agent: str
    message_type: str
    channel: str | None
    task_id: str | None
    turn_id: str | None
    created_at: int
    task_channel: str | None
    open_turn_id: str | None
    task_status: str | None

    @property
    def is_of_a_past_turn(self) -> bool:
        """An offer of a turn that is over: nobody will ever take it."""
        return self.message_type == "turn" and self.turn_id != self.open_turn_id

    @property
    def target_channel(self) -> str | None:
        """Where its agent is to be rung: an offered turn says it itself, else its task's open turn does."""
        if self.channel is not None or self.message_type == "turn":
            return self.channel
        return self.active_channel

    @property
    def active_channel(self) -> str | None:
        """The channel of its task's open turn. The commit that ends a turn leaves none."""
        return self.task_channel if self.open_turn_id is not None else None


class LapsedClaim(msgspec.Struct, frozen=True):
    """A running task whose holder's lease no longer holds."""

    task_id: str
    attempt_id: str
    session_id: str
    agent: str


class Conservation(msgspec.Struct, frozen=True):
    """What the commits counted, and what there is, at one moment."""

    accepted: int
    ended: int
    tasks: int
    ended_tasks: int

    @property
    def holds(self) -> bool:
        """Whether accepted = ended + live, and the counters are what there is."""
        return (self.accepted, self.ended) == (self.tasks, self.ended_tasks)


class Reads(BesideReads):
    """Domain questions over `_rows`, which runs one named query."""

    @abstractmethod
    async def glance(self, *asked: Probe) -> ProbeResult:
        """Several named queries as one statement; `NOW` among their parameters is the store's clock."""

    async def find_task(self, namespace: str, task_id: str) -> Task | None:
        """One task, if it exists."""
        rows = await self._rows("task_by_id", namespace, task_id)
        return Task(*rows[0]) if rows else None

    async def task(self, namespace: str, task_id: str) -> Task:
        """One task."""
        found = await self.find_task(namespace, task_id)
        if found is None:
            raise NotFound(f"there is no task {task_id}", code="no_such_task", task_id=task_id)
        return found

    async def tasks_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Task]:
        """Many tasks at once, in no particular order; unknown ids are left out."""
        return [Task(*row) for row in await self._rows("tasks_by_ids", namespace, list(ids))]

    async def results_by_ids(self, namespace: str, ids: Sequence[str]) -> list[tuple[Task, bytes | None]]:
        """The same with their deliverables; None while the task lives, or where that is large."""
        rows = await self._rows("results_by_ids", namespace, list(ids), LITTLE_BYTES)
        return [(Task(*row[:-1]), row[-1]) for row in rows]

    async def task_by_key(self, namespace: str, key: str) -> Task | None:
        """The task that an idempotency key belongs to; a task's own id is its key by default."""
        rows = await self._rows("task_by_key", namespace, key)
        return Task(*rows[0]) if rows else await self.find_task(namespace, key)

    async def tasks_page(
        self,
        namespace: str,
        *,
        status: str | None = None,
        agent: str | None = None,
        agent_key: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[Task]:
        """The newest tasks first; `before` is the last id of the previous page."""
        rows = await self._rows("tasks_page", namespace, status, agent, agent_key, before, limit)
        return [Task(*row) for row in rows]

    async def card(self, namespace: str, card_id: str) -> Card:
        """One card."""
        rows = await self._rows("card", namespace, card_id)
        if not rows:
            raise NotFound(f"there is no card {card_id}", code="no_such_card")
        return Card(*rows[0])

    async def cards_between(self, namespace: str, first: str, last: str) -> list[Card]:
        """The cards from one id up to another, which is not included."""
        return [Card(*row) for row in await self._rows("cards_between", namespace, first, last)]

    async def cards_page(self, namespace: str, after: str, before: str, limit: int) -> list[Card]:
        """The cards behind one id and before another, by id."""
        return [Card(*row) for row in await self._rows("cards_page", namespace, after, before, limit)]

    async def cards_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Card]:
        """Many cards at once, in no particular order."""
        return [Card(*row) for row in await self._rows("cards_by_ids", namespace, list(ids))]

    async def effect(self, namespace: str, key: str) -> Effect | None:
        """One effect."""
        rows = await self._rows("effect", namespace, key)
        return Effect(*rows[0]) if rows else None

    async def effects_page(
        self,
        namespace: str,
        *,
        status: str | None = None,
        task_id: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> list[Effect]:
        """Effects by key; `after` is the last key of the previous page."""
        rows = await self._rows("effects_page", namespace, status, task_id, after, limit)
        return [Effect(*row) for row in rows]

    async def pending_messages(self, namespace: str, task_id: str) -> list[Message]:
        """What waits in the inbox for one task, oldest first."""
        return [Message(*row) for row in await self._rows("pending_messages", namespace, task_id)]

    async def inbox_page(
        self,
        namespace: str,
        *,
        status: str | None = None,
        agent: str | None = None,
        task_id: str | None = None,
        message_type: str | None = None,
        before: tuple[int, str] | None = None,
        limit: int = 50,
    ) -> list[InboxRow]:
        """Messages, newest first; `before` is (created_at, id) of the last one of the previous page."""
        at, message_id = before or (None, None)
        wanted = (status, agent, task_id, message_type, at, message_id, limit)
        return [InboxRow(*row) for row in await self._rows("inbox_page", namespace, *wanted)]

    async def inbox_row(self, namespace: str, message_id: str) -> InboxRow:
        """One message."""
        rows = await self._rows("inbox_row", namespace, message_id)
        if not rows:
            raise NotFound(f"there is no message {message_id}", code="no_such_message")
        return InboxRow(*rows[0])

    async def long_pending(
        self, namespace: str, before: int, after: tuple[int, str], limit: int
    ) -> list[PendingRow]:
        """What has been pending since before that moment, oldest first, after (created_at, id)."""
        rows = await self._rows("long_pending", namespace, before, after[0], after[1], limit)
        return [PendingRow(*row) for row in rows]

    async def stale_messages(self, namespace: str, before: int, now: int, limit: int) -> list[str]:
        """What has been processed since before that moment by an attempt that no longer lives."""
        return [row[0] for row in await self._rows("stale_messages", namespace, before, now, limit)]

    async def undelivered(self, namespace: str, before: int, limit: int) -> list[tuple[Message, str, int]]:
        """Messages older than that which could be consumed now, with task status and vain deliveries."""
        rows = await self._rows("undelivered", namespace, before, limit)
        return [(Message(*row[:-2]), row[-2], row[-1]) for row in rows]

    async def pending_resumes(self, namespace: str, before: int, limit: int) -> list[tuple[str, str, int]]:
        """Answers in the resume ledger whose turn waits: message, task, deliveries begun in vain."""
        rows = await self._rows("pending_resumes", namespace, before, limit)
        return [(row[0], row[1], row[2]) for row in rows]

    async def answers_waiting(self, namespace: str, now: int, limit: int) -> list[tuple[str, str, str]]:
        """Answers to overdue waits that are there although nobody was told: task, call, card."""
        rows = await self._rows("answers_waiting", namespace, now, limit)
        return [(row[0], row[1], row[2]) for row in rows]

    async def due_waits(self, namespace: str, now: int, limit: int) -> list[str]:
        """Suspended tasks with an overdue wait."""
        return [row[0] for row in await self._rows("due_waits", namespace, now, limit)]

    async def children(self, namespace: str, task_id: str) -> list[Task]:
        """The children of a task."""
        return [Task(*row) for row in await self._rows("children", namespace, task_id)]

    async def approval(self, namespace: str, approval_id: str) -> ApprovalRow:
        """One approval."""
        rows = await self._rows("approval", namespace, approval_id)
        if not rows:
            raise NotFound(f"there is no approval {approval_id}", code="no_such_approval")
        return ApprovalRow(*rows[0])

    async def approvals_page(
        self,
        namespace: str,
        *,
        only_open: bool = True,
        task_id: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> list[ApprovalRow]:
        """Approvals by id; `after` is the last id of the previous page."""
        rows = await self._rows("approvals_page", namespace, int(only_open), task_id, after, limit)
        return [ApprovalRow(*row) for row in rows]

    async def open_calls(
        self, namespace: str, *, task_id: str | None = None, limit: int = 50
    ) -> list[OpenCall]:
        """Tools that suspended turns wait for."""
        return [OpenCall(*row) for row in await self._rows("open_calls", namespace, task_id, limit)]

    async def waits_of_task(self, namespace: str, task_id: str) -> list[WaitRow]:
        """Everything that turns of a task have waited for."""
        return [WaitRow(*row) for row in await self._rows("waits_of_task", namespace, task_id)]

    async def open_waits(self, namespace: str, turn_id: str, limit: int) -> list[Wait]:
        """What a turn still waits for, in the order of its calls."""
        return [Wait(*row) for row in await self._rows("open_waits_of_turn", namespace, turn_id, limit)]

    async def events_of_task(self, namespace: str, task_id: str) -> list[Event]:
        """The whole log of one task."""
        return [Event(*row) for row in await self._rows("events_of_task", namespace, task_id)]

    async def events_between(self, namespace: str, first: str, last: str) -> list[Event]:
        """The log of a run of tasks, task by task."""
        return [Event(*row) for row in await self._rows("events_between", namespace, first, last)]

    async def heads(self, namespace: str, after: str, limit: int) -> list[tuple[str, int, bytes]]:
        """What the task rows say of their last events."""
        rows = await self._rows("heads", namespace, after, limit)
        return [(str(row[0]), int(row[1]), bytes(row[2])) for row in rows]

    async def event_tasks(self, namespace: str, after: str, limit: int) -> list[str]:
        """Which tasks the log knows."""
        return [row[0] for row in await self._rows("event_tasks", namespace, after, limit)]

    async def due(
        self, namespace: str, now: int, after: tuple[int, str], limit: int
    ) -> list[tuple[str, int]]:
        """Tasks whose clock has passed, after (clock_at, id)."""
        rows = await self._rows("due", namespace, now, after[0], after[1], limit)
        return [(row[0], row[1]) for row in rows]

    async def held_tasks(self, namespace: str, after: str, limit: int) -> list[tuple[str, str]]:
        """Tasks that a person holds because of an unknown effect, and its key where the task names it."""
        rows = await self._rows("held_tasks", namespace, after, limit)
        return [(row[0], effect_it_is_held_for(row[1])) for row in rows]

    async def expired_claims(self, namespace: str, now: int, limit: int) -> list[LapsedClaim]:
        """Running tasks whose holder's lease no longer holds; the only ground for a reclaim."""
        rows = await self._rows("expired_claims", namespace, now, limit)
        return [LapsedClaim(*row) for row in rows]

    async def lapsed_sessions(self, namespace: str, now: int, limit: int) -> list[str]:
        """Sessions that lapsed and hold nothing any more."""
        return [row[0] for row in await self._rows("lapsed_sessions", namespace, now, limit)]

    async def session(self, namespace: str, session_id: str) -> Session | None:
        """One session."""
        rows = await self._rows("session", namespace, session_id)
        return Session(*rows[0]) if rows else None

    async def open_sessions(self, namespace: str) -> list[Session]:
        """Every session that has not ended."""
        return [Session(*row) for row in await self._rows("open_sessions", namespace)]

    async def key_holder(self, namespace: str, agent: str, agent_key: str) -> str | None:
        """The task whose turn holds an agent key."""
        rows = await self._rows("key_holder", namespace, agent, agent_key)
        return rows[0][0] if rows else None

    async def load_of_sessions(self, namespace: str) -> dict[str, int]:
        """How many tasks each session holds."""
        return {row[0]: row[1] for row in await self._rows("load_of_sessions", namespace)}

    async def offered_count(self, namespace: str, agent: str) -> int:
        """How many turns of an agent are offered and not yet taken."""
        return int((await self._rows("offered_count", namespace, agent))[0][0])

    async def agent(self, namespace: str, name: str) -> AgentSpec | None:
        """What is known of one agent."""
        rows = await self._rows("agent", namespace, name)
        return _agent(rows[0]) if rows else None

    async def agents(self, namespace: str) -> list[AgentSpec]:
        """All registered agents."""
        return [_agent(row) for row in await self._rows("agents", namespace)]

    async def ready_since(self, namespace: str, agent: str, now: int) -> int | None:
        """Since when an agent has had a ready task that nobody took."""
        found = []
        for (priority,) in await self._rows("priorities", namespace, agent):
            rows = await self._rows("ready_since", namespace, agent, priority, now)
            found += [row[0] for row in rows if row[0] is not None]
        return min(found, default=None)

    async def dead_letters_page(
        self,
        namespace: str,
        *,
        status: str | None = None,
        fingerprint: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[DeadLetter]:
        """Dead letters, newest first."""
        rows = await self._rows("dead_letters_page", namespace, status, fingerprint, before, limit)
        return [DeadLetter(*row) for row in rows]

    async def dead_letter(self, namespace: str, task_id: str) -> DeadLetter:
        """One dead letter."""
        rows = await self._rows("dead_letter", namespace, task_id)
        if not rows:
            raise NotFound(f"there is no dead letter {task_id}", code="no_such_dead_letter", task_id=task_id)
        return DeadLetter(*rows[0])

    async def letters_changed(self, namespace: str, since: int, after: str, limit: int) -> list[DeadLetter]:
        """Dead letters opened or closed since then, by change; `after`: the last id seen of that moment."""
        rows = await self._rows("letters_changed", namespace, since, after, limit)
        return [DeadLetter(*row) for row in rows]

    async def turns_of_task(self, namespace: str, task_id: str) -> list[TurnRecord]:
        """The turns of a task that have ended."""
        return turns_in(await self.events_of_task(namespace, task_id))

    async def counts(self, namespace: str) -> dict[str, int]:
        """How many tasks there are in each status."""
        return {row[0]: row[1] for row in await self._rows("counts", namespace)}

    async def cursor(self, namespace: str, name: str) -> Cursor | None:
        """How far a follower of the log has come."""
        rows = await self._rows("cursor", namespace, name)
        return Cursor(*rows[0]) if rows else None

    async def cursors_named(self, namespace: str, prefix: str) -> list[Cursor]:
        """Those whose names begin like this, in the order in which they were last moved."""
        return [Cursor(*row) for row in await self._rows("cursors_named", namespace, prefix)]

    async def last_tick(self, namespace: str) -> int | None:
        """When any PMO last came to the end of a tick."""
        found: int | None = (await self._rows("last_tick", namespace))[0][0]
        return found

    async def tallies(self, namespace: str) -> tuple[int, int]:
        """How many tasks were accepted and how many ended, as the commits counted them."""
        ((accepted, ended),) = await self._rows("tallies", namespace)
        return int(accepted), int(ended)

    async def conservation(self, namespace: str) -> Conservation:
        """The counters beside a full count, both of one moment."""
        (row,) = await self._rows("conservation", namespace)
        return Conservation(*(int(value) for value in row))

    async def waiting_by_agent(self, namespace: str, now: int) -> dict[str, int]:
        """How many tasks of each agent wait for a worker."""
        return {row[0]: row[1] for row in await self._rows("waiting_by_agent", namespace, now)}

    async def latest_moment(self, namespace: str) -> int | None:
        """The latest moment that the record knows of."""
        found: int | None = (await self._rows("latest_moment", namespace))[0][0]
        return found

    async def skipped_count(self, namespace: str, since: int = 0) -> int:
        """How many messages could not be delivered since then."""
        return int((await self._rows("skipped_count", namespace, since))[0][0])

    async def messages_page(self, namespace: str, after: str, limit: int) -> list[Message]:
        """Messages that wait to be consumed, by id."""
        return [Message(*row) for row in await self._rows("messages_page", namespace, after, limit)]

    async def schema_objects(self) -> list[str]:
        """The tables and indexes that there are."""
        return [row[0] for row in await self._rows("schema_objects")]

    async def integrity(self) -> list[str]:
        """What the database itself finds wrong with its file; nothing, if all is well."""
        return [str(row[0]) for row in await self._rows("integrity") if row[0] != "ok"]

    async def idle_transactions(self, seconds: float) -> list[tuple[int, str, int]]:
        """Who has sat in an open transaction for so long: process, name and seconds, the oldest first."""
        return [(row[0], row[1], row[2]) for row in await self._rows("idle_transactions", seconds)]

    async def namespaces(self) -> list[str]:
        """Every namespace that tasks or events know of."""
        return [row[0] for row in await self._rows("namespaces")]


def _agent(row: Sequence[Any]) -> AgentSpec:
    return AgentSpec(
        name=row[0],
        version=row[1],
        concurrency=row[2],
        retry_policy=row[3],
        deadline=row[4],
        payload_schema=row[5],
        kind=row[6],
        options=row[7],
        foreign_until=row[8],
    )
