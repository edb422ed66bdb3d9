"""The rows that a batch of commands needs, read with as few round trips as they allow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from endwell.model import commands as c
from endwell.model.approval import ApprovalRow
from endwell.model.cursor import Cursor
from endwell.model.effect import Effect
from endwell.model.message import Message
from endwell.model.session import SESSION_FIELDS, Session
from endwell.model.task import FIELDS, Task
from endwell.model.wait import Wait
from endwell.policy.limits import Limits
from endwell.store.claim_position import ClaimPosition
from endwell.store.postgres.statements import QUERIES
from endwell.store.rows import HolderKey, Offer, Rows, TaskKey, Wanted, reach
from endwell.store.stream_reads import START, QueuePosition
from endwell.store.wait_rows import MOST_OVERDUE, wanted_calls, wanted_waits

_WIDTH = len(FIELDS)
_SESSION = len(SESSION_FIELDS)


class Reading:
    """Reads on one connection; `rows` fill up, and `now` is the server's clock at the latest of them."""

    def __init__(
        self,
        connection: Any,
        *,
        known: dict[TaskKey, Task],
        reached: ClaimPosition,
        limits: Limits,
        shift: int,
        locking: bool,
        sessions: str,
    ) -> None:
        self._connection = connection
        self._reached = reached
        self._limits = limits
        self._shift = shift
        self._locking = locking
        self._sessions_query = sessions
        self.rows = Rows(tasks=known)
        self.now: int | None = None

    async def read(self, want: Wanted) -> Rows:
        """Everything that is not known. Locks are taken in one order: tasks, sessions, then what is free."""
        unknown = want.tasks - self.rows.tasks.keys()
        if unknown and len(want.sessions) == 1 and self._sessions_query == "see_sessions":
            await self._tasks_and_session(unknown, *want.sessions)
        elif unknown:
            await self._tasks(unknown)
        if want.keys:
            await self._keys(want.keys)
        if want.held_by:
            await self._sessions_with_held(want.held_by)
        if sessions := want.sessions - want.held_by - self.rows.sessions.keys():
            await self._sessions(sessions)
        for command in want.ready:
            self.rows.ready[command.command_id] = await self._offers(command)
        await self._beside(want)
        return self.rows

    async def _beside(self, want: Wanted) -> None:
        if want.effects:
            for namespace, restored_at, *row in await self._fetch("lock_effects", *_pairs(want.effects)):
                if restored_at is not None:
                    self.rows.restored_at[namespace] = restored_at
                if row[0] is not None:
                    self.rows.effects[row[0], row[1]] = Effect(*row)
        if want.inbox:
            self.rows.inbox = {key: [] for key in want.inbox}
            for row in await self._fetch("pending_of_tasks", *_pairs(want.inbox)):
                message = Message(*row)
                self.rows.inbox[message.namespace, message.task_id or ""].append(message)
        if ruled := self.rows.ruled(want):
            await self._rules(ruled)
        if asked := self.rows.asked_about(want):
            for namespace, *row in await self._fetch("approvals_of_tasks", *_pairs(asked)):
                self.rows.approvals[namespace, row[0]] = ApprovalRow(*row)
        if want.messages:
            for row in await self._fetch("see_messages", *_pairs(want.messages)):
                message = Message(*row)
                self.rows.messages[message.namespace, message.id] = message
        await self._waits(want)
        if want.cursors:
            for row in await self._fetch("lock_cursors", *_pairs(want.cursors)):
                self._heard(row[0] + self._shift)
                self.rows.cursors[row[1], row[2]] = Cursor(*row[1:])
        if want.children:
            # any of very many may move between being read and being written
            name = "lock_children" if self._locking else "live_children"
            for row in await self._fetch(name, *_pairs(want.children)):
                child = Task(*row)
                self.rows.children.setdefault((child.namespace, child.parent_id or ""), []).append(child)

    async def _rules(self, agents: Collection[TaskKey]) -> None:
        for now, namespace, agent, rule in await self._fetch("rules_of_agents", *_pairs(agents)):
            self._heard(now + self._shift)
            if rule is not None:
                self.rows.rules.setdefault((namespace, agent), []).append(rule)

    async def _waits(self, want: Wanted) -> None:
        waits = wanted_waits(want, self.rows)
        if waits.calls:
            for row in await self._fetch("waits_for_calls", *_triples(waits.calls)):
                wait = Wait(*row[2:])
                self.rows.waits[row[0], row[1], wait.tool_call_id] = wait
        for key, count in waits.signals.items():
            found = await self._fetch("waits_for_signal", *key, count)
            self.rows.signals[key] = [Wait(*row) for row in found]
        for turn in waits.next_of:
            found = await self._fetch("next_waits_of_turn", *turn, MOST_OVERDUE + 1)
            self.rows.next_waits[turn] = [Wait(*row) for row in found]
        calls = wanted_calls(want, self.rows)
        asked = [(*key, card_id) for key, cards in calls.items() for card_id in cards]
        if asked:
            for namespace, task_id, card_id in await self._fetch("known_cards", *_triples(asked)):
                self.rows.calls.setdefault((namespace, task_id), set()).add(card_id)

    async def _fetch(self, name: str, *parameters: Any) -> Sequence[Any]:
        rows: Sequence[Any] = await self._connection.fetch(QUERIES[name], *parameters)
        return rows

    def _heard(self, now: int) -> None:
        self.now = max(self.now or 0, now)

    async def _tasks(self, keys: Collection[TaskKey]) -> None:
        rows = await self._fetch("lock_tasks" if self._locking else "see_tasks", *_pairs(keys))
        for row in rows:
            self._heard(row[0] + self._shift)
        await self._found(Task(*row[1:]) for row in rows)

    async def _tasks_and_session(self, keys: Collection[TaskKey], session: TaskKey) -> None:
        rows = await self._fetch("see_tasks_and_session", *_pairs(keys), *session)
        tasks: list[Task] = []
        for now, has_rule, *row in rows:
            self._heard(now + self._shift)
            if row[0] is not None:
                self.rows.sessions[session] = Session(*row[:_SESSION])
            tasks.append(Task(*row[_SESSION:]))
            if not has_rule:
                self.rows.rules.setdefault((tasks[-1].namespace, tasks[-1].agent), [])
        await self._found(tasks)

    async def _found(self, tasks: Iterable[Task]) -> None:
        holders: set[HolderKey] = set()
        for task in tasks:
            self.rows.tasks[task.namespace, task.id] = task
            if task.agent_key is not None:
                holders.add((task.namespace, task.agent, task.agent_key))
        if holders:
            await self._holders(holders)

    async def _holders(self, keys: Collection[HolderKey]) -> None:
        for namespace, agent, agent_key, holder in await self._fetch("holders", *_triples(keys)):
            self.rows.holders[namespace, agent, agent_key] = holder

    async def _keys(self, keys: Collection[TaskKey]) -> None:
        for row in await self._fetch("tasks_of_keys", *_pairs(keys)):
            task = Task(*row[2:])
            self._heard(row[0] + self._shift)
            self.rows.keys[task.namespace, row[1]] = task

    async def _sessions(self, keys: Collection[TaskKey]) -> None:
        for row in await self._fetch(self._sessions_query, *_pairs(keys)):
            session = Session(*row[1:])
            self._heard(row[0] + self._shift)
            self.rows.sessions[session.namespace, session.id] = session

    async def _sessions_with_held(self, keys: Collection[TaskKey]) -> None:
        self.rows.held_by = {key: [] for key in keys}
        for row in await self._fetch("lock_sessions_with_held", *_pairs(keys)):
            session, task = Session(*row[1 : 1 + _SESSION]), row[1 + _SESSION :]
            self._heard(row[0] + self._shift)
            self.rows.sessions[session.namespace, session.id] = session
            if task[0] is not None:
                self.rows.held_by[session.namespace, session.id].append(Task(*task))

    async def _offers(self, command: c.ClaimNext | c.DispatchNext) -> list[Offer]:
        """Turns already offered come first, then queued tasks by priority, start time and id."""
        agents = (command.agent,) if isinstance(command, c.DispatchNext) else command.agents
        places = self._reached.of(command.namespace, agents, reach(command))
        found = await self._offered(command, agents, places)
        if len(found) < reach(command) and any(place is not START for place in places):
            found = await self._offered(command, agents, [START] * len(agents))
        found = await self._without_held_keys(found)
        if len(agents) > 1:
            found.sort(key=lambda o: (o.task.status == "queued", -o.task.priority, o.task.run_at, o.task.id))
        return found

    async def _offered(
        self, command: c.ClaimNext | c.DispatchNext, agents: Sequence[str], places: Sequence[QueuePosition]
    ) -> list[Offer]:
        asked = (command.namespace, agents, reach(command), self._shift, *self._asked(command))
        rows = await self._fetch("offers", *asked, *zip(*places, strict=True))
        found = [self._offer(row) for row in rows]
        for agent in agents:
            tasks = [offer.task for offer in found if offer.task.agent == agent]
            self._reached.note(command.namespace, agent, tasks, reach(command))
        return found

    def _asked(self, command: c.ClaimNext | c.DispatchNext) -> tuple[Any, ...]:
        """How many that were offered before, and suspects; what makes one; whether with what was asked."""
        crashes = max(self._limits.crash_limit - 1, 1)
        if isinstance(command, c.DispatchNext):
            return 0, 1, crashes, command.is_carried
        return reach(command), int(command.may_take_suspect), crashes, True

    def _offer(self, row: Any) -> Offer:
        task = Task(*row[4 : 4 + _WIDTH])
        self._heard(row[0])
        if row[1]:
            self.rows.free_slots.setdefault((task.namespace, task.agent), list(row[2]))
        if not row[3]:
            self.rows.rules.setdefault((task.namespace, task.agent), [])
        return Offer(task, row[4 + _WIDTH] or b"null")

    async def _without_held_keys(self, offers: list[Offer]) -> list[Offer]:
        """Two stores may be offered two tasks of one agent key at once: only one of them gets the key.

        Whoever had it before has ended when we get it, but after our offers were read; so the holders are
        looked up once more. The unique index behind this has the last word.
        """
        keys = {key for offer in offers if (key := _key_to_take(offer.task)) is not None}
        if not keys:
            return offers
        ours = {(row[0], row[1], row[2]) for row in await self._fetch("take_keys", *_triples(keys))}
        if ours:
            await self._holders(ours)
        free = ours - self.rows.holders.keys()
        return [o for o in offers if (key := _key_to_take(o.task)) is None or key in free]


def _key_to_take(task: Task) -> HolderKey | None:
    """The agent key that a task would take; one whose turn has begun has it already."""
    if task.agent_key is None or task.turn_id is not None:
        return None
    return (task.namespace, task.agent, task.agent_key)


def _pairs(keys: Collection[TaskKey]) -> tuple[list[str], list[str]]:
    ordered = sorted(keys)
    return [key[0] for key in ordered], [key[1] for key in ordered]


def _triples(keys: Collection[HolderKey]) -> tuple[list[str], list[str], list[str]]:
    ordered = sorted(keys)
    return [key[0] for key in ordered], [key[1] for key in ordered], [key[2] for key in ordered]
