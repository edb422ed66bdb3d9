"""The door's driver for SQLite, inline: one connection, one transaction per batch, no threads.

`Desk` runs it in whichever thread asks first; a simulation may run it where it stands.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import apsw
from msgspec.structs import astuple

from endwell.errors import EndwellError, StoreError, UsageError
from endwell.model import commands as c
from endwell.model.approval import ApprovalRow
from endwell.model.card import Card
from endwell.model.cursor import Cursor
from endwell.model.effect import Effect
from endwell.model.message import Message
from endwell.model.session import SESSION_FIELDS, Session
from endwell.model.task import FIXED_FIELDS, Task
from endwell.model.wait import Wait
from endwell.policy.limits import Limits
from endwell.store import door
from endwell.store.probe import Probe, ProbeSql
from endwell.store.queries import load
from endwell.store.row_cache import RowCache
from endwell.store.rows import LITTLE_BYTES, Offer, Outcome, Reply, Rows, TaskKey, Wanted, Writes, reach
from endwell.store.sqlite.connection import Pause, connect, explained, immediate, migrate, read_pragma
from endwell.store.sqlite.log_file import LogFile
from endwell.store.sqlite.row_groups import InGroups
from endwell.store.stream_reads import QueuePosition, ReadyTurn
from endwell.store.wait_rows import MOST_OVERDUE, wanted_calls, wanted_waits

QUERIES: Final = load("queries.sql", "sqlite/queries.sql", parameter="?")
_JOINER: Final = ProbeSql(QUERIES, mark="?", clock="SELECT", now="?1")
_FIXED: Final = len(FIXED_FIELDS)
_SESSION: Final = len(SESSION_FIELDS)
_ADD_TASK: Final = InGroups(QUERIES["add_task"])
_MOVE_TASK: Final = InGroups(QUERIES["move_tasks"], single=QUERIES["move_task"])
_ADD_EVENT: Final = InGroups(QUERIES["add_event"])
_ADD_CARD: Final = InGroups(QUERIES["add_card"])
# what a batch may fail with that is not simply passed on
_UNSTORABLE: Final = (
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.TooBigError,
    OverflowError,
    TypeError,
    ValueError,
)
_LOOKED_INTO: Final = (*_UNSTORABLE, apsw.IOError, apsw.FullError)
# rows are added before they are closed, whatever the order of the commands
SIDE_QUERIES: Final = (
    "add_inbox_turn",
    "add_dead_letter",
    "add_approval",
    "add_wait",
    "add_resume",
    "mark_inbox",
    "requeue_message",
    "close_dead_letter",
    "vote_approval",
    "close_approval",
    "answer_wait",
    "drop_waits",
    "doubt_effect",
    "mark_restored",
    "close_message",
    "take_resume",
    "count_delivery",
    "reset_deliveries",
    "close_resume",
    "requeue_resumes",
    "drop_rules",
    "add_rule",
    "drop_expired_agents",
)


class _MovedOnError(Exception):
    """A row that was thought to be held as it is has been changed by another process."""


class NotAtOnceError(Exception):
    """Nothing was done: another process holds the file, or the batch has to be taken apart."""


class SqliteDriver:
    """Runs batches of commands, and named read queries, on one connection."""

    def __init__(self, path: Path, *, limits: Limits, now: Callable[[], int], pause: Pause) -> None:
        self.path = path
        self._limits = limits
        self._now = now
        self._pid = os.getpid()
        self._doubt: tuple[Sequence[c.Command], Outcome] | None = None
        self._is_careful = False
        self._may_wait = True
        self._held = RowCache()
        self._connection = connect(path, lambda count: self._may_wait and pause(count))
        self.schema = migrate(self._connection, path)
        self._log_file = LogFile(path, self._connection)

    def close(self) -> None:
        self._connection.close()

    def run(self, commands: Sequence[c.Command], *, at_once: bool = False) -> Outcome:
        """One transaction for all of them; if the database refuses it, each gets one of its own.

        With `at_once` nobody is waited for, and nothing long is begun: `NotAtOnceError` then.
        """
        self._refuse_after_fork()
        self._may_wait = not at_once
        try:
            return self._attempt_with_held(commands)
        except _UNSTORABLE as error:
            if at_once:
                raise NotAtOnceError from error
            return self._one_by_one(commands, error)
        except (apsw.IOError, apsw.FullError) as error:
            return self._after_failed_commit(commands, error)
        except StoreError as error:
            if at_once and error.code == "store_busy":
                raise NotAtOnceError from error
            raise

    @property
    def is_log_long(self) -> bool:
        """Whether it is time for `fold_log_if_long`, which takes a while."""
        return self._log_file.is_long

    def fold_log_if_long(self) -> None:
        """Fold the write-ahead log back into the file when it has grown."""
        self._may_wait = True
        self._log_file.fold_if_long(self._connection)

    def _attempt_with_held(self, commands: Sequence[c.Command]) -> Outcome:
        """What this process holds it need not read again: the version guard tells if somebody moved it."""
        try:
            outcome = self._attempt(commands)
        except _MovedOnError:
            self._held.forget()
            outcome = self._attempt(commands)
        self._held.note(outcome.writes)
        return outcome

    def _attempt(self, commands: Sequence[c.Command]) -> Outcome:
        self._doubt = None
        with explained(self.path, leave=_LOOKED_INTO), immediate(self._connection):
            want = door.wanted(commands, careful=self._is_careful)
            known = self._held.known(want)
            is_remembered = bool(known)
            outcome = door.outcome(commands, self._read(want, known), self._now(), self._limits)
            if is_remembered and any(reply.refusal is not None for reply in outcome.replies):
                raise _MovedOnError  # a refusal writes nothing, so nothing else would notice
            self._write(outcome.writes)
            self._doubt = (commands, outcome)
        return outcome

    def _one_by_one(self, commands: Sequence[c.Command], error: Exception) -> Outcome:
        """Find the command that the database refuses; its neighbours are not to suffer."""
        if self._is_careful:
            refusal = EndwellError(f"the store refused the write: {error}", code="constraint")
            refusal.__cause__ = error
            return Outcome([Reply(refusal=refusal)], Writes(), set())
        merged = Outcome([], Writes(), set())
        self._held.forget()
        self._is_careful = True
        try:
            for command in commands:
                single = self.run((command,))
                merged.replies += single.replies
                merged.bells |= single.bells
        finally:
            self._is_careful = False
        return merged

    def _after_failed_commit(self, commands: Sequence[c.Command], error: apsw.Error) -> Outcome:
        """A failed COMMIT may nevertheless have taken place: look, and if so, its outcome stands."""
        with explained(self.path):
            outcome = self.stored(commands)
            if outcome is None:
                raise error
            return outcome

    def stored(self, commands: Sequence[c.Command]) -> Outcome | None:
        """What the last batch came to, if these were its commands and it took place."""
        self._held.forget()
        if self._doubt is None or self._doubt[0] is not commands:
            return None
        outcome = self._doubt[1]
        trace = outcome.writes.trace
        return outcome if trace is not None and self.rows(*trace) else None

    def never_wait(self) -> None:
        """From now on a busy file is an error at once: this connection is used where nobody may block."""
        self._may_wait = False

    def rows(self, name: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The rows of one named query."""
        return self._connection.execute(QUERIES[name], tuple(parameters)).fetchall()

    def glance(self, now: int, asked: Sequence[Probe]) -> tuple[Any, ...]:
        """The time, and what several named queries answer to it."""
        sql, parameters = _JOINER.statement(asked)
        lists = (json.dumps(value) if isinstance(value, (list, tuple)) else value for value in parameters)
        return next(self._connection.execute(sql, (now, *lists)))

    def data_version(self) -> int | None:
        """A number that changes when another connection has committed; None while the file is busy."""
        try:
            return int(read_pragma(self._connection, "data_version"))
        except apsw.Error:
            return None

    def settings(self) -> dict[str, Any]:
        """What the database itself says of its version and durability."""
        names = ("journal_mode", "synchronous", "wal_autocheckpoint", "page_size", "cache_size")
        read = {name: read_pragma(self._connection, name) for name in names}
        return {"store": "sqlite", "sqlite_version": apsw.sqlite_lib_version(), **read}

    def _read(self, want: Wanted, known: dict[TaskKey, Task]) -> Rows:
        rows = Rows(tasks=known)
        for key in want.tasks - rows.tasks.keys():
            for row in self.rows("task_by_id", key):
                rows.tasks[key] = Task(*row)
        for key in want.keys:
            for row in self.rows("task_by_key", key) or self.rows("task_by_id", key):
                rows.keys[key] = Task(*row)
        for key in want.held_by:
            self._read_with_held(key, rows)
        for key in want.sessions - want.held_by:
            for row in self.rows("session", key):
                rows.sessions[key] = Session(*row)
        for command in want.ready:
            rows.ready[command.command_id] = self._offers(command, rows)
        self._read_holders(want, rows)
        self._read_beside(want, rows)
        return rows

    def _read_with_held(self, key: TaskKey, rows: Rows) -> None:
        """A session and what it holds: every heartbeat of every worker asks this."""
        found = self.rows("session_with_held", key)
        rows.held_by[key] = [Task(*row[_SESSION:]) for row in found if row[_SESSION] is not None]
        for row in found[:1]:
            rows.sessions[key] = Session(*row[:_SESSION])

    def _read_beside(self, want: Wanted, rows: Rows) -> None:
        for key in want.effects:
            for row in self.rows("effect", key):
                rows.effects[key] = Effect(*row)
            if key not in rows.effects or rows.effects[key].is_settled:
                for (at,) in self.rows("restored_at", key[:1]):
                    rows.restored_at[key[0]] = at
        for key in want.inbox:
            rows.inbox[key] = [Message(*row) for row in self.rows("pending_of_task", key)]
        for key in want.messages:
            for row in self.rows("pending_message", key):
                rows.messages[key] = Message(*row)
        self._read_waits(want, rows)
        for key in want.children:
            rows.children[key] = [Task(*row) for row in self.rows("live_children", key)]
        for key in rows.ruled(want):
            rows.rules[key] = [rule for (rule,) in self.rows("rules", key)]
        for key in rows.asked_about(want):
            for row in self.rows("approval", key):
                rows.approvals[key] = ApprovalRow(*row)
        for key in want.cursors:
            for row in self.rows("cursor", key):
                rows.cursors[key] = Cursor(*row)

    def _read_waits(self, want: Wanted, rows: Rows) -> None:
        waits = wanted_waits(want, rows)
        for key in waits.calls:
            for row in self.rows("wait_for_call", key):
                rows.waits[key] = Wait(*row)
        for key, count in waits.signals.items():
            found = self.rows("waits_for_signal", (*key, count))
            rows.signals[key] = [Wait(*row) for row in found]
        for turn in waits.next_of:
            found = self.rows("next_waits_of_turn", (*turn, MOST_OVERDUE + 1))
            rows.next_waits[turn] = [Wait(*row) for row in found]
        for task_key, cards in wanted_calls(want, rows).items():
            found = self.rows("known_cards", (task_key[0], json.dumps(cards)))
            rows.calls[task_key] = {card_id for (card_id,) in found}

    def _read_holders(self, want: Wanted, rows: Rows) -> None:
        for task in rows.tasks.values():
            if task.agent_key is not None:
                key = (task.namespace, task.agent, task.agent_key)
                for (holder,) in self.rows("key_holder", key):
                    rows.holders[key] = holder

    def _offers(self, command: c.ClaimNext | c.DispatchNext, rows: Rows) -> list[Offer]:
        """Turns already offered come first, then queued tasks by priority, start time and id."""
        now = self._now()
        if isinstance(command, c.DispatchNext):
            return self._queued(command.namespace, command.agent, reach(command), now, rows, suspects=1)
        found: list[Offer] = []
        for agent in command.agents:
            offered = self.rows("offered", (command.namespace, agent, reach(command)))
            found += [_offer(row) for row in offered]
            left = reach(command) - len(offered)
            suspects = int(command.may_take_suspect)
            found += self._queued(command.namespace, agent, left, now, rows, suspects=suspects)
        if len(command.agents) > 1:
            found.sort(key=lambda o: (o.task.status == "queued", -o.task.priority, o.task.run_at, o.task.id))
        return found

    def _queued(
        self, namespace: str, agent: str, limit: int, now: int, rows: Rows, *, suspects: int
    ) -> list[Offer]:
        limit = self._limit_by_slots(namespace, agent, limit, rows)
        if limit <= 0:
            return []
        crashes = max(self._limits.crash_limit - 1, 1)
        some = self.rows("suspects", (namespace, agent, crashes, now, suspects)) if suspects else []
        found = [_offer(row) for row in some]
        for (priority,) in self.rows("priorities", (namespace, agent)):
            left = limit - len(found)
            if left <= 0:
                break
            found += [
                _offer(row) for row in self.rows("ready", (namespace, agent, priority, now, left, crashes))
            ]
        return found

    def ready_turns(self, namespace: str, agent: str, limit: int, after: QueuePosition) -> list[ReadyTurn]:
        """Ready tasks by priority, start time and id, from behind a place on."""
        now, found = self._now(), list[ReadyTurn]()
        for (priority,) in self.rows("priorities", (namespace, agent)):
            behind = after[1:] if priority == after.priority else (-1, "")
            asked = (namespace, agent, priority, now, *behind, limit - len(found))
            found += [ReadyTurn(*row) for row in self.rows("ready_turns", asked)]
            if len(found) == limit:
                break
        return found

    def _limit_by_slots(self, namespace: str, agent: str, limit: int, rows: Rows) -> int:
        spec = self.rows("agent", (namespace, agent))
        concurrency = spec[0][2] if spec else None
        if concurrency is None:
            return limit
        free = [row[0] for row in self.rows("free_slots", (namespace, agent, concurrency, max(limit, 0)))]
        rows.free_slots.setdefault((namespace, agent), free)
        return len(free)

    def _write(self, writes: Writes) -> None:
        if writes.is_empty:
            return
        many = self._connection.executemany
        if writes.created:
            _ADD_TASK.run(self._connection, [astuple(task) for task in writes.created])
        if writes.moved:
            before = self._connection.total_changes()
            _MOVE_TASK.run(self._connection, [_move(task, seen) for task, seen in writes.moved])
            if self._connection.total_changes() - before != len(writes.moved):
                raise _MovedOnError
        if writes.events:
            _ADD_EVENT.run(self._connection, writes.events)
        if writes.cards:
            _ADD_CARD.run(self._connection, [astuple(card) for card in writes.cards])
        if writes.slots:
            many(QUERIES["set_slot"], writes.slots)
        if writes.effects_added:
            many(QUERIES["add_effect"], [astuple(effect) for effect in writes.effects_added])
        if writes.effects_moved:
            many(QUERIES["move_effect"], [astuple(effect) for effect in writes.effects_moved])
        if writes.messages:
            many(QUERIES["add_message"], [astuple(message) for message in writes.messages])
        if writes.sessions:
            many(QUERIES["save_session"], [astuple(session) for session in writes.sessions])
        if writes.cursors:
            many(QUERIES["save_cursor"], [astuple(cursor) for cursor in writes.cursors])
        for namespace, (accepted, ended) in writes.tallies.items():
            self._connection.execute(QUERIES["add_tally"], (namespace, accepted, ended, writes.now))
        for name in SIDE_QUERIES if writes.side else ():
            if rows := writes.side.get(name):
                many(QUERIES[name], rows)
        self._write_agents(writes)

    def _write_agents(self, writes: Writes) -> None:
        for namespace, at, spec in writes.agents:
            self._connection.execute(QUERIES["save_agent"], (namespace, at, *astuple(spec)))
            slots = [(namespace, spec.name, slot) for slot in range(spec.concurrency or 0)]
            self._connection.executemany(QUERIES["add_slot"], slots)

    def _refuse_after_fork(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                "this store was opened before the process forked",
                hint="make a new Endwell object in the child process",
            )

    def cards_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Card]:
        """Many cards at once."""
        return [Card(*row) for row in self.rows("cards_by_ids", (namespace, json.dumps(list(ids))))]

    def tasks_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Task]:
        """Many tasks at once."""
        return [Task(*row) for row in self.rows("tasks_by_ids", (namespace, json.dumps(list(ids))))]

    def results_by_ids(self, namespace: str, ids: Sequence[str]) -> list[tuple[Task, bytes | None]]:
        """The same, with what they delivered."""
        rows = self.rows("results_by_ids", (namespace, json.dumps(list(ids)), LITTLE_BYTES))
        return [(Task(*row[:-1]), row[-1]) for row in rows]


def _offer(row: Sequence[Any]) -> Offer:
    return Offer(Task(*row[:-1]), row[-1] or b"null")


def _move(task: Task, seen: int) -> tuple[Any, ...]:
    values = astuple(task)
    return (task.namespace, task.id, seen, *values[_FIXED:])
