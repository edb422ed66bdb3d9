"""After any commands in any order, every row is the fold of its log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from endwell.machine.evolve import evolve
from endwell.machine.evolve_rows import EFFECT_FACTS, evolve_effect
from endwell.model import commands as c
from endwell.model.card import record_id
from endwell.model.effect import Effect
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.store.contract import Store
from tests.store.world import BROKEN, HOPELESS, SqliteDatabase, World


class Monkey:
    """Gives random commands, right and wrong ones, to two stores at once."""

    def __init__(self, world: World, stores: list[Store], seed: int) -> None:
        self.world = world
        self.stores = stores
        self.dice = random.Random(seed)
        self.known: list[Task] = []

    async def run(self, rounds: int) -> None:
        for _ in range(rounds):
            batches = [[self.command() for _ in range(self.dice.randint(1, 8))] for _ in self.stores]
            answers = await asyncio.gather(
                *(store.commit(batch) for store, batch in zip(self.stores, batches, strict=True))
            )
            for reply in (reply for answer in answers for reply in answer):
                self.known += [offer.task for offer in reply.taken]
                self.known += [reply.task] if reply.task is not None else []
            self.known = self.known[-40:]
            if self.dice.random() < 0.3:
                self.world.advance(self.dice.choice([1, 20, 400]))

    def command(self) -> c.Command:
        if not self.known or self.dice.random() < 0.2:
            return self._submit()
        if self.dice.random() < 0.35:
            return self._about_sessions()
        task = self.dice.choice(self.known)
        kind, options = self.dice.choice(self._moves(task))
        return self.world.to(kind, task, **options())  # type: ignore[no-any-return]

    def _submit(self) -> c.Submit:
        options: dict[str, Any] = {"priority": self.dice.randint(-1, 1)}
        if self.dice.random() < 0.3:
            options["key"] = f"key-{self.dice.randint(0, 5)}"
        if self.dice.random() < 0.3:
            options["agent_key"] = f"k{self.dice.randint(0, 2)}"
        if self.dice.random() < 0.2:
            options["approval_within"] = 60 * SECOND
        return self.world.submit(self.dice.choice(["coder", "limited"]), **options)

    def _content(self) -> dict[str, Any]:
        return {"content": b"1", "content_hash": "x"}

    def _step(self) -> str:
        return f"1:()step#{self.dice.randint(1, 3)}"

    def _effect(self) -> dict[str, Any]:
        number = self.dice.randint(1, 3)
        return {"key": f"pay:{number}", "step": f"1:()pay#{number}"}

    def _verdict(self) -> str:
        return self.dice.choice(["done", "not_done", "abandon"])

    def _call_id(self, task: Task) -> str:
        return record_id(task.id, f"1:(){self.dice.choice(['a', 'b'])}#1")

    def _calls(self, task: Task) -> tuple[c.Call, ...]:
        kinds = self.dice.sample(["tool", "timer", "signal", "approval"], self.dice.randint(1, 3))
        return tuple(
            self.world.call(task, name, kind, within=self.dice.choice([5, 60]), asks="go")
            for name, kind in zip("abc", kinds, strict=False)
        )

    def _about_sessions(self) -> c.Command:
        session = self.dice.choice(["s1", "s2"])
        held = [task for task in self.known if task.session_id == session][-3:]
        agents = ("coder", "limited")
        return self.dice.choice(
            [
                self.world.claim_next(session, self.dice.randint(1, 6), agents),
                self.world.dispatch_next(2, self.dice.choice(agents)),
                self.world.heartbeat(*held, session=session, lease=900),
            ]
        )

    def _moves(self, task: Task) -> list[tuple[type[c.TaskCommand], Callable[[], dict[str, Any]]]]:
        attempt = {"attempt_id": task.attempt_id or "none"}
        again = {"new_task_id": self.world.new_id(), "payload": b"{}", "payload_hash": task.payload_hash}
        return [
            (c.Finish, lambda: {**attempt, "result": b"1", "result_hash": "x"}),
            (c.FailTurn, lambda: {**attempt, "error": self.dice.choice([BROKEN, HOPELESS])}),
            (c.Progress, lambda: {**attempt, "note": "on it"}),
            (c.HandBack, lambda: attempt),
            (c.Suspend, lambda: {**attempt, "calls": self._calls(task)}),
            (c.Answer, lambda: {**self._content(), "tool_call_id": self._call_id(task)}),
            (c.Signal, lambda: {**self._content(), "name": "go"}),
            (c.InjectTimeout, dict),
            (c.RecordStep, lambda: {**attempt, **self._content(), "step": self._step()}),
            (c.KeepDraft, lambda: {**attempt, **self._content()}),
            (c.IntendEffect, lambda: {**attempt, **self._effect(), "args_hash": "x", "timeout": SECOND}),
            (c.FinishEffect, lambda: {**attempt, **self._effect(), **self._content()}),
            (c.DoubtEffect, lambda: {**attempt, "key": self._effect()["key"], "reason": "why"}),
            (c.SettleEffect, lambda: {"key": self._effect()["key"], "verdict": self._verdict()}),
            (c.Reclaim, lambda: {**attempt, "session_id": task.session_id or "s1"}),
            (c.ClockFired, dict),
            (c.Approve, dict),
            (c.Reject, dict),
            (c.Cancel, dict),
            (c.RunNow, dict),
            (c.Block, lambda: {"reason": "look", "cooldown": self.dice.choice([None, 10 * SECOND])}),
            (c.Replay, lambda: again),
            (c.Abandon, dict),
        ]


@pytest.mark.parametrize("seed", range(3))
async def test_after_a_random_run_every_row_is_the_fold_of_its_log(world: World, seed: int) -> None:
    await world.register(c.AgentSpec(name="limited", concurrency=2))
    await world.open_session("s1", lease=900)
    await world.open_session("s2", lease=900)
    await Monkey(world, [world.store, await world.another_store()], seed).run(40)

    assert await world.problems() == []
    assert len(await world.store.counts_by_status("default")) >= 4
    held = "SELECT id FROM tasks WHERE slot IS NOT NULL ORDER BY id"
    slots = "SELECT task_id FROM slots WHERE task_id IS NOT NULL ORDER BY task_id"
    assert [row[0] for row in await world.database.sql(held)] == [
        row[0] for row in await world.database.sql(slots)
    ]
    letters = "SELECT task_id, status FROM dead_letters ORDER BY task_id"
    tasks = "SELECT id, dead_letter FROM tasks WHERE dead_letter IS NOT NULL ORDER BY id"
    assert [tuple(row) for row in await world.database.sql(letters)] == [
        tuple(row) for row in await world.database.sql(tasks)
    ]
    waiting = "SELECT id FROM tasks WHERE status = 'waiting_approval' ORDER BY id"
    asked = "SELECT task_id FROM approvals WHERE decision IS NULL AND id = task_id ORDER BY task_id"
    assert [row[0] for row in await world.database.sql(waiting)] == [
        row[0] for row in await world.database.sql(asked)
    ]
    if isinstance(world.database, SqliteDatabase):  # there the log's order is the order of commits
        assert await effects_of_log(world.store) == await effects_in_table(world.store)
    offered = (
        "SELECT turn_id FROM tasks WHERE inside LIKE '%\"is_offered\":true%'"
        " AND status IN ('queued', 'dispatched') ORDER BY turn_id"
    )
    inbox = (
        "SELECT DISTINCT turn_id FROM agent_inbox"
        " WHERE status = 'pending' AND message_type = 'turn' ORDER BY turn_id"
    )
    assert [row[0] for row in await world.database.sql(offered)] == [
        row[0] for row in await world.database.sql(inbox)
    ]


async def effects_of_log(store: Store) -> dict[str, Effect]:
    """The effects that the whole log comes to, in the order of its commits."""
    tasks: dict[str, Task] = {}
    effects: dict[str, Effect] = {}
    cursor = ""
    while page := await store.events_after("default", cursor, 500):
        for logged in page:
            event, cursor = logged.event, logged.cursor
            before = tasks.get(event.task_id)
            if isinstance(event.fact, EFFECT_FACTS):
                assert before is not None
                known = effects.get(event.fact.key)
                effects[event.fact.key] = evolve_effect(known, event.fact, before, event.at)
            tasks[event.task_id] = evolve(
                before, event.fact, event.at, namespace="default", task_id=event.task_id
            )
    return effects


async def effects_in_table(store: Store) -> dict[str, Effect]:
    return {effect.key: effect for effect in await store.effects_page("default")}
