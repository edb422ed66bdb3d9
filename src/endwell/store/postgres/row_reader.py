"""Reads the rows that the door wants for a batch, in as few round trips as they allow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from endwell.model import commands as c
from endwell.model.approval import ApprovalRow
from endwell.model.cursor import Cursor
from endwell.model.effect import Effect
from endwell.model.message import Message
from endwell.model.session import SESSION_FIELDS, Session
from endwell.model.status import QUEUED
from endwell.model.task import FIELDS, Task
from endwell.model.wait import Wait
from endwell.policy.guard import suspect_crashes
from endwell.policy.limits import Limits
from endwell.store.claim_position import ClaimPosition
from endwell.store.postgres.statements import QUERIES
from endwell.store.reads.streams import START, QueuePosition
from endwell.store.rows import HolderKey, Offer, Rows, TaskKey, Wanted, ready_limit
from endwell.store.wait_rows import MOST_OVERDUE, wanted_calls, wanted_waits

LEAST_REMEMBERED: Final = 16
"""Tasks that a claim must ask for to have its position kept; smaller ones go by the exact order."""
_WIDTH: Final = len(FIELDS)
_SESSION: Final = len(SESSION_FIELDS)
_TakeTasks = c.ClaimNext | c.DispatchNext


class PostgresRowReader:
    """Fills the rows of one batch; `now` is the server's clock at the latest of them."""

    def __init__(
        self,
        connection: Any,
        *,
        known: dict[TaskKey, Task],
        position: ClaimPosition,
        limits: Limits,
        shift: int,
        locking: bool,
        sessions: str,
    ) -> None:
        self._connection = connection
        self._position = position
        self._shift = shift
        self._locking = locking
        self._sessions_query = sessions
        self._crashes = suspect_crashes(limits.crash_limit)
        self.rows = Rows(tasks=known)
        self.now: int | None = None

    async def read(self, want: Wanted) -> Rows:
        """Read everything that is not known. Locks come in one order: tasks, sessions, then what is free."""
        unknown = want.tasks - self.rows.tasks.keys()
        if unknown and len(want.sessions) == 1 and self._sessions_query == "see_sessions":
            await self._read_tasks_and_session(unknown, *want.sessions)
        elif unknown:
            await self._read_tasks(unknown)
        if want.keys:
            await self._read_tasks_of_keys(want.keys)
        if want.held_by:
            await self._read_sessions_with_held(want.held_by)
        if sessions := want.sessions - want.held_by - self.rows.sessions.keys():
            await self._read_sessions(sessions)
        for command in want.ready:
            self.rows.ready[command.command_id] = await self._read_offers(command)
        if want.effects:
            await self._read_effects(want.effects)
        await self._read_approvals(want)
        await self._read_inbox(want)
        await self._read_waits(want)
        if want.cursors:
            await self._read_cursors(want.cursors)
        if want.children:
            await self._read_children(want.children)
        return self.rows

    async def _fetch_rows(self, name: str, *parameters: Any) -> Sequence[Any]:
        rows: Sequence[Any] = await self._connection.fetch(QUERIES[name], *parameters)
        return rows

    async def _fetch_timed(self, name: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Fetch rows whose first column is the server's time, and note it."""
        rows = await self._fetch_rows(name, *parameters)
        for row in rows[:1]:
            self.now = max(self.now or 0, row[0] + self._shift)
        return [tuple(row[1:]) for row in rows]

    async def _read_tasks(self, keys: Collection[TaskKey]) -> None:
        rows = await self._fetch_timed("lock_tasks" if self._locking else "see_tasks", *_columns(keys))
        await self._keep_tasks([Task(*row) for row in rows])

    async def _read_tasks_and_session(self, keys: Collection[TaskKey], session: TaskKey) -> None:
        tasks: list[Task] = []
        for has_rule, *row in await self._fetch_timed("see_tasks_and_session", *_columns(keys), *session):
            if row[0] is not None:
                self.rows.sessions[session] = Session(*row[:_SESSION])
            tasks.append(Task(*row[_SESSION:]))
            if not has_rule:
                self.rows.rules.setdefault((tasks[-1].namespace, tasks[-1].agent), [])
        await self._keep_tasks(tasks)

    async def _keep_tasks(self, tasks: Sequence[Task]) -> None:
        keyed: set[HolderKey] = set()
        for task in tasks:
            self.rows.tasks[task.namespace, task.id] = task
            if task.agent_key is not None:
                keyed.add((task.namespace, task.agent, task.agent_key))
        if keyed:
            await self._read_key_holders(keyed)

    async def _read_key_holders(self, keys: Collection[HolderKey]) -> None:
        for namespace, agent, agent_key, holder in await self._fetch_rows("holders", *_columns(keys)):
            self.rows.holders[namespace, agent, agent_key] = holder

    async def _read_tasks_of_keys(self, keys: Collection[TaskKey]) -> None:
        for key, *row in await self._fetch_timed("tasks_of_keys", *_columns(keys)):
            task = Task(*row)
            self.rows.keys[task.namespace, key] = task

    async def _read_sessions(self, keys: Collection[TaskKey]) -> None:
        for row in await self._fetch_timed(self._sessions_query, *_columns(keys)):
            session = Session(*row)
            self.rows.sessions[session.namespace, session.id] = session

    async def _read_sessions_with_held(self, keys: Collection[TaskKey]) -> None:
        self.rows.held_by = {key: [] for key in keys}
        for row in await self._fetch_timed("lock_sessions_with_held", *_columns(keys)):
            session, task = Session(*row[:_SESSION]), row[_SESSION:]
            self.rows.sessions[session.namespace, session.id] = session
            if task[0] is not None:
                self.rows.held_by[session.namespace, session.id].append(Task(*task))

    async def _read_effects(self, keys: Collection[TaskKey]) -> None:
        for namespace, restored_at, *row in await self._fetch_rows("lock_effects", *_columns(keys)):
            if restored_at is not None:
                self.rows.restored_at[namespace] = restored_at
            if row[0] is not None:
                self.rows.effects[row[0], row[1]] = Effect(*row)

    async def _read_approvals(self, want: Wanted) -> None:
        if agents := self.rows.wanted_rules(want):
            for namespace, agent, rule in await self._fetch_timed("rules_of_agents", *_columns(agents)):
                if rule is not None:
                    self.rows.rules.setdefault((namespace, agent), []).append(rule)
        if asked := self.rows.wanted_approvals(want):
            for namespace, *row in await self._fetch_rows("approvals_of_tasks", *_columns(asked)):
                self.rows.approvals[namespace, row[0]] = ApprovalRow(*row)

    async def _read_inbox(self, want: Wanted) -> None:
        if want.inbox:
            self.rows.inbox = {key: [] for key in want.inbox}
            for row in await self._fetch_rows("pending_of_tasks", *_columns(want.inbox)):
                message = Message(*row)
                self.rows.inbox[message.namespace, message.task_id or ""].append(message)
        if want.messages:
            for row in await self._fetch_rows("see_messages", *_columns(want.messages)):
                message = Message(*row)
                self.rows.messages[message.namespace, message.id] = message

    async def _read_waits(self, want: Wanted) -> None:
        waits = wanted_waits(want, self.rows)
        if waits.calls:
            for row in await self._fetch_rows("waits_for_calls", *_columns(waits.calls)):
                wait = Wait(*row[2:])
                self.rows.waits[row[0], row[1], wait.tool_call_id] = wait
        for key, count in waits.signals.items():
            found = await self._fetch_rows("waits_for_signal", *key, count)
            self.rows.signals[key] = [Wait(*row) for row in found]
        for turn in waits.next_of:
            found = await self._fetch_rows("next_waits_of_turn", *turn, MOST_OVERDUE + 1)
            self.rows.next_waits[turn] = [Wait(*row) for row in found]
        calls = wanted_calls(want, self.rows)
        asked = [(*key, card_id) for key, cards in calls.items() for card_id in cards]
        if asked:
            for namespace, task_id, card_id in await self._fetch_rows("known_cards", *_columns(asked)):
                self.rows.calls.setdefault((namespace, task_id), set()).add(card_id)

    async def _read_cursors(self, keys: Collection[TaskKey]) -> None:
        for row in await self._fetch_timed("lock_cursors", *_columns(keys)):
            self.rows.cursors[row[0], row[1]] = Cursor(*row)

    async def _read_children(self, keys: Collection[TaskKey]) -> None:
        # any of very many may move between being read and being written
        name = "lock_children" if self._locking else "live_children"
        for row in await self._fetch_rows(name, *_columns(keys)):
            child = Task(*row)
            self.rows.children.setdefault((child.namespace, child.parent_id or ""), []).append(child)

    async def _read_offers(self, command: _TakeTasks) -> list[Offer]:
        """Turns that were offered before come first, then queued tasks by priority, start time and id."""
        agents = (command.agent,) if isinstance(command, c.DispatchNext) else command.agents
        if isinstance(command, c.DispatchNext) and command.may_offer_suspect:
            await self._read_suspect_out(command.namespace)
        starts = [self._start_of(command, agent) for agent in agents]
        found = await self._read_offers_behind(command, agents, starts)
        if len(found) < ready_limit(command) and any(start is not START for start in starts):
            found = await self._read_offers_behind(command, agents, [START] * len(agents))
        found = await self._without_held_keys(found)
        if len(agents) > 1:
            found.sort(key=lambda o: (o.task.status == QUEUED, -o.task.priority, o.task.run_at, o.task.id))
        return found

    async def _read_suspect_out(self, namespace: str) -> None:
        if namespace not in self.rows.suspect_out:
            found = await self._fetch_rows("suspect_out", namespace, self._crashes)
            self.rows.suspect_out[namespace] = bool(found)

    def _start_of(self, command: _TakeTasks, agent: str) -> QueuePosition:
        is_large = ready_limit(command) >= LEAST_REMEMBERED
        return self._position.start_of(command.namespace, agent) if is_large else START

    async def _read_offers_behind(
        self, command: _TakeTasks, agents: Sequence[str], starts: Sequence[QueuePosition]
    ) -> list[Offer]:
        asked = (command.namespace, agents, ready_limit(command), self._shift, *self._offer_terms(command))
        rows = await self._fetch_rows("offers", *asked, *zip(*starts, strict=True))
        found = [self._offer_in(row) for row in rows]
        for agent in agents:
            ready = [o.task for o in found if o.task.agent == agent and o.task.status == QUEUED]
            last = ready[-1] if LEAST_REMEMBERED <= ready_limit(command) <= len(ready) else None
            behind = None if last is None else QueuePosition(last.priority, last.run_at, last.id)
            self._position.advance(command.namespace, agent, behind)
        return found

    def _offer_terms(self, command: _TakeTasks) -> tuple[Any, ...]:
        """How many offered turns, how many suspects, what makes a suspect, and whether with payloads."""
        if isinstance(command, c.DispatchNext):
            may_offer = command.may_offer_suspect and not self.rows.suspect_out[command.namespace]
            return 0, int(may_offer), self._crashes, command.is_streamed
        return ready_limit(command), int(command.may_take_suspect), self._crashes, True

    def _offer_in(self, row: Any) -> Offer:
        task = Task(*row[4 : 4 + _WIDTH])
        self.now = max(self.now or 0, row[0])
        if row[1]:
            self.rows.free_slots.setdefault((task.namespace, task.agent), list(row[2]))
        if not row[3]:
            self.rows.rules.setdefault((task.namespace, task.agent), [])
        return Offer(task, row[4 + _WIDTH] or b"null")

    async def _without_held_keys(self, offers: list[Offer]) -> list[Offer]:
        """Take the agent keys of these offers, and drop the offers whose key another store has.

        The turn that had a key may have ended after our offers were read, so the holders are read once
        more. The unique index behind this has the last word.
        """
        keys = {key for offer in offers if (key := _key_to_take(offer.task)) is not None}
        if not keys:
            return offers
        ours = {(row[0], row[1], row[2]) for row in await self._fetch_rows("take_keys", *_columns(keys))}
        if ours:
            await self._read_key_holders(ours)
        free = ours - self.rows.holders.keys()
        return [o for o in offers if (key := _key_to_take(o.task)) is None or key in free]


def _key_to_take(task: Task) -> HolderKey | None:
    """The agent key that a task would take; one whose turn has begun has it already."""
    if task.agent_key is None or task.turn_id is not None:
        return None
    return (task.namespace, task.agent, task.agent_key)


def _columns(keys: Collection[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Keys as the columns of a table, in one order everywhere, so that no two stores wait for each other."""
    return list(zip(*sorted(keys), strict=True))
