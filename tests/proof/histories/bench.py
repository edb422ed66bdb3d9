"""The bench of a history: two stores on one database, a namespace, and the checks after each command."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from endwell.errors import EndwellError, StaleAttempt
from endwell.model import commands as c
from endwell.model.message import Message
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.operate.record.task_check import log_problems
from endwell.operate.record.verify import verify
from endwell.policy.ledger import AllowExecute
from endwell.policy.limits import Limits
from endwell.policy.retry import RetryPolicy
from endwell.store.contract import Store
from endwell.store.rows import Reply
from tests.machine.walk.step import ONLY_BY_HOLDER
from tests.store.world import Database

LIMITS: Final = Limits(
    retry=RetryPolicy(max_retries=2, jitter=0.0),
    runaway_limit=8,
    crash_limit=2,
    remind_every=600 * SECOND,
)
TERMINAL: Final = ("task.succeeded", "task.failed", "task.timeout", "task.cancelled")
OF_CONTENT: Final = ("content_changed", "content_missing", "card_unnamed")
"""Problems to be ignored: commands of a history have contents that do not match their hashes."""
FIRINGS_TO_AN_END: Final = 300


class Stores:
    """Two stores that many histories use; each history has a namespace of its own."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.loop = asyncio.new_event_loop()
        self.both = [database.store(LIMITS), database.store(LIMITS)]
        for store in self.both:
            self.do(store.open())

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        for store in self.both:
            self.do(store.close())
        self.loop.close()


class History:
    """One history. `give` commits commands and checks every reply."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self.namespace = stores.database.runtime.ids.new()
        self.tasks: dict[str, Task] = {}
        self.attempts: dict[str, list[str]] = {}
        self.keys: dict[str, str] = {}
        self.replays: dict[str, str] = {}
        self.allowed: Counter[str] = Counter()
        self.not_done: Counter[str] = Counter()
        self.steps = 0

    def new_id(self) -> str:
        return self._stores.database.runtime.ids.new()

    def basics(self) -> dict[str, Any]:
        return {"command_id": self.new_id(), "namespace": self.namespace, "actor": "test"}

    def ask(self, question: Any) -> Any:
        return self._stores.do(question)

    @property
    def store(self) -> Store:
        return self._stores.both[0]

    def advance(self, seconds: float) -> None:
        self._stores.database.advance(seconds)

    def give(self, commands: Sequence[c.Command], through: int = 0) -> list[Reply]:
        """Commit commands together, through one of the two stores, and check the result."""
        self.steps += 1
        before = dict(self.tasks)
        replies: list[Reply] = self.ask(self._stores.both[through].commit(commands))
        for command, reply in zip(commands, replies, strict=True):
            self._note(command, reply)
        self.tasks.update(self._read())
        if len(commands) == 1:
            self._check_single(commands[0], replies[0], before)
        self._check_tasks(before)
        return replies

    def _read(self) -> dict[str, Task]:
        """Read every task of this history through the store that may not have written it."""
        found: list[Task] = self.ask(self.store.tasks_by_ids(self.namespace, list(self.tasks)))
        return {task.id: task for task in found}

    def _note(self, command: c.Command, reply: Reply) -> None:
        assert type(reply.refusal) is not EndwellError, f"a defect, not a refusal: {reply.refusal}"
        for offer in reply.taken:
            if isinstance(command, c.ClaimNext):
                self._claimed(offer.task)
        if isinstance(command, c.Replay) and reply.task is not None and reply.refusal is None:
            assert self.replays.setdefault(command.task_id, reply.task.id) == reply.task.id, "replayed twice"
            self.tasks[reply.task.id] = reply.task
        if isinstance(reply.ledger, AllowExecute) and isinstance(command, c.IntendEffect):
            self.allowed[command.key] += 1
        if isinstance(command, c.SettleEffect) and command.verdict == "not_done" and reply.refusal is None:
            self.not_done[command.key] += 1
        if isinstance(command, c.Submit) and reply.task is not None and reply.refusal is None:
            self._submitted(command, reply.task)

    def _claimed(self, task: Task) -> None:
        seen = self.attempts.setdefault(task.id, [])
        assert task.attempt_id not in seen, "an attempt is new at every claim"
        seen.append(task.attempt_id or "")

    def _submitted(self, command: c.Submit, task: Task) -> None:
        if command.key is not None:
            assert self.keys.setdefault(command.key, task.id) == task.id, "one key, one task"
        assert task.payload_hash == command.payload_hash, "one key, one body"
        self.tasks.setdefault(task.id, task)

    def _check_single(self, command: c.Command, reply: Reply, before: dict[str, Task]) -> None:
        if not isinstance(command, c.TaskCommand):
            return
        known = before.get(command.task_id)
        attempt = getattr(command, "attempt_id", None)
        if isinstance(command, ONLY_BY_HOLDER) and known is not None and attempt != known.attempt_id:
            assert isinstance(reply.refusal, StaleAttempt), f"{command} was not refused as stale: {reply}"
        if reply.refusal is not None and known is not None and not isinstance(reply.refusal, StaleAttempt):
            assert self.tasks[known.id] == known, "what is refused changes nothing"

    def _check_tasks(self, before: dict[str, Task]) -> None:
        """Check that ended tasks do not change, counters never fall, and live tasks have a clock."""
        for task_id, task in self.tasks.items():
            was = before.get(task_id)
            assert task.is_ended or task.clock_at is not None
            if was is None:
                continue
            assert task.version >= was.version
            assert task.epoch >= was.epoch
            assert task.dispatch_count >= was.dispatch_count
            if was.is_ended:
                assert (task.status, task.deliverable_card) == (was.status, was.deliverable_card)
        self._check_shares()
        for key, count in self.allowed.items():
            assert count <= 1 + self.not_done[key], f"effect {key} was allowed {count} times"

    def _check_shares(self) -> None:
        """Check that an agent key has one turn at a time, and a limited agent no more than its limit."""
        live = [task for task in self.tasks.values() if not task.is_ended]
        keys = Counter((t.agent, t.agent_key) for t in live if t.agent_key and t.turn_id)
        assert all(count == 1 for count in keys.values()), keys
        assert sum(t.agent == "limited" and t.status in ("dispatched", "running") for t in live) <= 1

    def to_the_end(self) -> None:
        """Fire clocks until every task has ended or reminds the person who holds it."""
        for _ in range(FIRINGS_TO_AN_END):
            live = [t for t in self.tasks.values() if not t.is_ended and t.held_since is None]
            if not live:
                break
            first = min(live, key=lambda task: task.clock_at or 0)
            now: int = self.ask(self.store.now())
            self.advance(max(0, (first.clock_at or 0) - now) / SECOND)
            self.give([c.ClockFired(**self.basics(), task_id=first.id)])
        assert all(t.is_ended or t.remind_at is not None for t in self.tasks.values())
        self._deliver_what_is_left()
        self._check_record()

    def _deliver_what_is_left(self) -> None:
        now: int = self.ask(self.store.now())
        left: list[tuple[Message, str, int]] = self.ask(
            self.store.undelivered_messages(self.namespace, now + 1, 1000)
        )
        for message, _, _ in left:
            if message.message_type != "stop":
                deliver = c.Deliver(**self.basics(), task_id=message.task_id or "", message_id=message.id)
                self.give([deliver])

    def _check_record(self) -> None:
        ids: list[str] = self.ask(self.store.event_tasks(self.namespace, "", 10_000))
        assert set(self.tasks) <= set(ids), "no accepted task is lost"
        for task_id in ids:
            row = self.ask(self.store.find_task(self.namespace, task_id))
            events = self.ask(self.store.events_of_task(self.namespace, task_id))
            assert log_problems(task_id, row, events) == []
            ends = [event.type for event in events if event.type in TERMINAL]
            assert len(ends) == (1 if row.is_ended else 0), ends
            if row.is_ended:
                pending = self.ask(self.store.pending_messages(self.namespace, task_id))
                assert [message for message in pending if message.message_type != "stop"] == []
        self._check_log(set(ids))

    def _check_log(self, task_ids: set[str]) -> None:
        """Check that a follower sees the events of every task in order, none missing and none twice."""
        versions, cursor = dict.fromkeys(task_ids, 0), ""
        while page := self.ask(self._stores.both[1].events_after(self.namespace, cursor, 7)):
            for one in page:
                versions[one.event.task_id] += 1
                assert one.event.version == versions[one.event.task_id], f"{one.event.event_id} at {one.seq}"
            cursor = page[-1].cursor
        tasks = self.ask(self.store.tasks_by_ids(self.namespace, sorted(task_ids)))
        assert versions == {task.id: task.version for task in tasks}
        report = self.ask(verify(self.store, [self.namespace]))
        assert [one for one in report["problems"] if one["kind"] not in OF_CONTENT] == []
