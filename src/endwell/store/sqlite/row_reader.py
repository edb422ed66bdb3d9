"""Reads the rows that the door wants for a batch, one small query at a time: SQLite has no round trips."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from endwell.model import commands as c
from endwell.model.approval import ApprovalRow
from endwell.model.cursor import Cursor
from endwell.model.effect import Effect
from endwell.model.message import Message
from endwell.model.session import SESSION_FIELDS, Session
from endwell.model.task import Task
from endwell.model.wait import Wait
from endwell.policy.guard import suspect_crashes
from endwell.policy.limits import Limits
from endwell.store.rows import Offer, Rows, TaskKey, Wanted, ready_limit
from endwell.store.wait_rows import MOST_OVERDUE, wanted_calls, wanted_waits

_SESSION: Final = len(SESSION_FIELDS)
Ask = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Runs one named query."""


class SqliteRowReader:
    """Fills the rows of one batch; `known` are tasks that need not be read."""

    def __init__(self, ask: Ask, *, known: dict[TaskKey, Task], limits: Limits, now: int) -> None:
        self._ask = ask
        self._now = now
        self._crashes = suspect_crashes(limits.crash_limit)
        self.rows = Rows(tasks=known)

    def read(self, want: Wanted) -> Rows:
        """Read everything that is not known."""
        rows = self.rows
        for key in want.tasks - rows.tasks.keys():
            for row in self._ask("task_by_id", key):
                rows.tasks[key] = Task(*row)
        for key in want.keys:
            for row in self._ask("task_by_key", key) or self._ask("task_by_id", key):
                rows.keys[key] = Task(*row)
        self._read_sessions(want)
        for command in want.ready:
            rows.ready[command.command_id] = self._read_offers(command)
        self._read_key_holders()
        self._read_effects(want)
        self._read_inbox(want)
        self._read_waits(want)
        self._read_approvals(want)
        for key in want.children:
            rows.children[key] = [Task(*row) for row in self._ask("live_children", key)]
        for key in want.cursors:
            for row in self._ask("cursor", key):
                rows.cursors[key] = Cursor(*row)
        return rows

    def _read_sessions(self, want: Wanted) -> None:
        for key in want.held_by:
            found = self._ask("session_with_held", key)
            self.rows.held_by[key] = [Task(*row[_SESSION:]) for row in found if row[_SESSION] is not None]
            for row in found[:1]:
                self.rows.sessions[key] = Session(*row[:_SESSION])
        for key in want.sessions - want.held_by:
            for row in self._ask("session", key):
                self.rows.sessions[key] = Session(*row)

    def _read_key_holders(self) -> None:
        for task in self.rows.tasks.values():
            if task.agent_key is not None:
                key = (task.namespace, task.agent, task.agent_key)
                for (holder,) in self._ask("key_holder", key):
                    self.rows.holders[key] = holder

    def _read_effects(self, want: Wanted) -> None:
        for key in want.effects:
            for row in self._ask("effect", key):
                self.rows.effects[key] = Effect(*row)
            if key not in self.rows.effects or self.rows.effects[key].is_settled:
                for (at,) in self._ask("restored_at", key[:1]):
                    self.rows.restored_at[key[0]] = at

    def _read_inbox(self, want: Wanted) -> None:
        for key in want.inbox:
            self.rows.inbox[key] = [Message(*row) for row in self._ask("pending_of_task", key)]
        for key in want.messages:
            for row in self._ask("pending_message", key):
                self.rows.messages[key] = Message(*row)

    def _read_waits(self, want: Wanted) -> None:
        waits = wanted_waits(want, self.rows)
        for key in waits.calls:
            for row in self._ask("wait_for_call", key):
                self.rows.waits[key] = Wait(*row)
        for key, count in waits.signals.items():
            found = self._ask("waits_for_signal", (*key, count))
            self.rows.signals[key] = [Wait(*row) for row in found]
        for turn in waits.next_of:
            found = self._ask("next_waits_of_turn", (*turn, MOST_OVERDUE + 1))
            self.rows.next_waits[turn] = [Wait(*row) for row in found]
        for task_key, cards in wanted_calls(want, self.rows).items():
            found = self._ask("known_cards", (task_key[0], json.dumps(cards)))
            self.rows.calls[task_key] = {card_id for (card_id,) in found}

    def _read_approvals(self, want: Wanted) -> None:
        for key in self.rows.wanted_rules(want):
            self.rows.rules[key] = [rule for (rule,) in self._ask("rules", key)]
        for key in self.rows.wanted_approvals(want):
            for row in self._ask("approval", key):
                self.rows.approvals[key] = ApprovalRow(*row)

    def _read_offers(self, command: c.ClaimNext | c.DispatchNext) -> list[Offer]:
        """Turns that were offered before come first, then queued tasks by priority, start time and id."""
        if isinstance(command, c.DispatchNext):
            limit, may_offer = ready_limit(command), self._may_offer_suspect(command)
            return self._read_queued(command.namespace, command.agent, limit, suspects=int(may_offer))
        found: list[Offer] = []
        for agent in command.agents:
            offered = self._ask("offered", (command.namespace, agent, ready_limit(command)))
            found += map(_offer_in, offered)
            left = ready_limit(command) - len(offered)
            found += self._read_queued(command.namespace, agent, left, suspects=int(command.may_take_suspect))
        if len(command.agents) > 1:
            found.sort(key=lambda o: (o.task.status == "queued", -o.task.priority, o.task.run_at, o.task.id))
        return found

    def _may_offer_suspect(self, command: c.DispatchNext) -> bool:
        if not command.may_offer_suspect:
            return False
        out = self.rows.suspect_out
        if command.namespace not in out:
            out[command.namespace] = bool(self._ask("suspect_out", (command.namespace, self._crashes)))
        return not out[command.namespace]

    def _read_queued(self, namespace: str, agent: str, limit: int, *, suspects: int) -> list[Offer]:
        limit = self._limit_by_slots(namespace, agent, limit)
        if limit <= 0:
            return []
        crashes = self._crashes
        found: list[Offer] = []
        if suspects:
            found += map(_offer_in, self._ask("suspects", (namespace, agent, crashes, self._now, suspects)))
        for (priority,) in self._ask("priorities", (namespace, agent)):
            left = limit - len(found)
            if left <= 0:
                break
            ready = (namespace, agent, priority, self._now, left, crashes)
            found += map(_offer_in, self._ask("ready", ready))
        return found

    def _limit_by_slots(self, namespace: str, agent: str, limit: int) -> int:
        spec = self._ask("agent", (namespace, agent))
        concurrency = spec[0][2] if spec else None
        if concurrency is None:
            return limit
        free = [row[0] for row in self._ask("free_slots", (namespace, agent, concurrency, max(limit, 0)))]
        self.rows.free_slots.setdefault((namespace, agent), free)
        return len(free)


def _offer_in(row: Sequence[Any]) -> Offer:
    return Offer(Task(*row[:-1]), row[-1] or b"null")
