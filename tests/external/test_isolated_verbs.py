"""Every verb of the context inside an agent in a process of its own, and what a crash of it leaves behind."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from endwell import AsyncHandle, SqliteEffectStore
from endwell.errors import EffectRejected, NotFound, StaleAttempt, StoreError, TaskFailed
from endwell.external.child_pipe import RemoteHold
from endwell.external.child_protocol import error_from, error_message
from endwell.model.task import waits_of
from endwell.runtime import SystemClock
from tests.external.test_isolation import Crew, gone
from tests.patience import PATIENCE_SECONDS
from tests.support.manual_clock import ManualClock
from tests.support.world import TINY, World, eventually, terminal

QUICK_EFFECTS: dict[str, object] = {"worker.effect_margin_seconds": 0.1}


@pytest.fixture
async def crew(sqlite_url: str) -> AsyncIterator[Crew]:
    async with World(sqlite_url, settings={**TINY, **QUICK_EFFECTS}, clock=SystemClock()) as world:
        crew = Crew(world)
        try:
            yield crew
        finally:
            crew.end()


def calls_in(path: Path) -> list[str]:
    """Which functions were called, in order."""
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def caller(path: Path, name: str) -> int:
    """The process of the last call of that name."""
    return [int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(name)][-1]


async def killed_in(path: Path, name: str) -> None:
    """Kill the child while it executes that function."""
    await eventually(lambda: name in calls_in(path), f"{name} is called")
    pid = caller(path, name)
    os.kill(pid, 9)
    await gone([pid])


async def answered(crew: Crew, handle: AsyncHandle) -> None:
    """Give a suspended task everything that it waits for from outside."""
    task = await crew.world.in_status(handle, "suspended")
    calls = {wait.kind: wait.tool_call_id for wait in waits_of(task)}
    assert set(calls) == {"tool", "call", "signal", "approval", "timer"}, "it waits for all of it together"
    await crew.world.client.answer(calls["tool"], {"found": 7})
    await crew.world.client.signal(handle.id, "go", "now")
    await crew.world.client.approve(calls["approval"], by="ada")


@pytest.mark.parametrize("agent", ["verbs", "blocking-verbs"])
async def test_every_verb_works_in_a_process_of_its_own(crew: Crew, tmp_path: Path, agent: str) -> None:
    crew.worker(agent, "double", settings=QUICK_EFFECTS)
    handle = await crew.submitted(agent, str(tmp_path / "calls"))
    await answered(crew, handle)
    assert await handle.result(PATIENCE_SECONDS) == {
        "first": "FIRST",
        "pair": ["LEFT", "RIGHT"],
        "paid": "PAY",
        "waited": [{"found": 7}, 42, "now", ["ada"], None],
    }
    assert sorted(calls_in(tmp_path / "calls")) == ["first", "left", "pay", "right"], (
        "once each, in two turns"
    )
    pids = {caller(tmp_path / "calls", name) for name in ("first", "left", "pay", "right")}
    assert len(pids) == 1, "in the child"
    assert not pids & {worker.pid for worker in crew.workers}
    draft = (await crew.world.facts(handle, "task.draft_kept"))[0].card
    assert (await crew.world.store.card(crew.world.namespace, draft)).content == b'["FIRST","LEFT","RIGHT"]'
    assert (await handle.task()).retry_count == 0


async def test_a_child_killed_in_a_step_leaves_what_is_recorded_to_the_next_attempt(
    crew: Crew, tmp_path: Path
) -> None:
    crew.worker("hangs")
    handle = await crew.submitted("hangs", str(tmp_path / "calls"))
    await killed_in(tmp_path / "calls", "second")
    assert await handle.result(PATIENCE_SECONDS) == ["FIRST", "SECOND"]
    assert calls_in(tmp_path / "calls") == ["first", "second", "second"]
    assert (await handle.task()).retry_count == 1


async def test_an_effect_whose_child_was_killed_is_reconciled_and_not_repeated(
    crew: Crew, tmp_path: Path
) -> None:
    crew.worker("pays", settings=QUICK_EFFECTS)
    handle = await crew.submitted("pays", str(tmp_path / "calls"))
    await killed_in(tmp_path / "calls", "pay")
    assert await handle.result(PATIENCE_SECONDS) == "pay was done"
    assert calls_in(tmp_path / "calls") == ["pay"]


async def test_an_effect_that_reconcile_cannot_settle_is_handed_to_a_person(
    crew: Crew, tmp_path: Path
) -> None:
    crew.worker("asks-a-person", settings=QUICK_EFFECTS)
    handle = await crew.submitted("asks-a-person", str(tmp_path / "calls"))
    task = await crew.world.in_status(handle, "blocked")
    assert task.retry_count == 0, "the turn has not failed"
    await gone([caller(tmp_path / "calls", "pay")])
    await crew.world.client.settle_effect("the payment", "done", "receipt", by="ada")
    assert await handle.result(PATIENCE_SECONDS) == "receipt"
    assert calls_in(tmp_path / "calls") == ["pay"]


async def test_a_child_begins_no_effect_under_a_lease_that_has_lapsed(crew: Crew, tmp_path: Path) -> None:
    """Its worker was frozen. The task is not reclaimed yet, so the store alone would not refuse it."""
    path = tmp_path / "calls"
    worker = crew.worker("pays-later", settings=QUICK_EFFECTS)
    handle = await crew.submitted("pays-later", str(path))
    await eventually(lambda: "ready" in calls_in(path), "the child waits")
    stale = caller(path, "ready")
    await crew.world.freeze_between_commits(worker)
    (tmp_path / "calls.go").touch()

    async def lapsed() -> bool:
        store, namespace = crew.world.store, crew.world.namespace
        return bool(await store.expired_claims(namespace, await store.now(), 1))

    await eventually(lapsed, "the lease has lapsed")
    worker.thaw()
    await gone([stale])
    pmo = await crew.world.supervisor()

    async def ended() -> bool:
        await pmo.run_once()
        return (await handle.task()).is_ended

    await eventually(ended, "the task ends under a new lease")
    assert await handle.result(PATIENCE_SECONDS) == "PAY"
    calls = calls_in(path)
    assert calls.count("pay") == 1
    if calls == ["ready", "pay"]:  # the woken worker renewed its lease before the child asked: then it holds
        assert caller(path, "pay") == stale
    else:
        assert calls == ["ready", "ready", "pay"]
        assert caller(path, "pay") != stale
    assert terminal(await crew.world.history(handle)) == ["task.succeeded"]


async def test_a_timed_out_step_ends_with_its_child(crew: Crew, tmp_path: Path) -> None:
    crew.worker("slow-step")
    handle = await crew.submitted("slow-step", str(tmp_path / "calls"))
    assert await handle.result(PATIENCE_SECONDS) == "step_timeout"
    await gone([caller(tmp_path / "calls", "slow")])


async def test_a_memory_limit_holds_in_steps_and_leaves_them_as_much(crew: Crew) -> None:
    crew.worker("hungry-step")
    assert (
        await (await crew.submitted("hungry-step", 270)).result(PATIENCE_SECONDS) == [270 * 1024 * 1024] * 2
    )
    error = await crew.error_of(await crew.submitted("hungry-step", 330))
    assert (error["code"], error["type"]) == ("agent_out_of_memory", "MemoryError")


async def test_records_of_any_size_reach_the_next_turn(crew: Crew) -> None:
    crew.worker("large-records")
    assert await (await crew.submitted("large-records")).result(PATIENCE_SECONDS) == 6_000_000


async def test_more_bytes_than_a_child_may_ask_with_are_refused(crew: Crew) -> None:
    crew.worker("asks-for-much")
    handle = await crew.submitted("asks-for-much")
    with pytest.raises(TaskFailed, match="more than 16,777,216 bytes at once"):
        await handle.result(PATIENCE_SECONDS)
    assert '"too_many_waits"' in ((await handle.task()).error or "")


async def test_the_payload_of_an_isolated_agent_is_read_in_its_process_alone(
    crew: Crew, tmp_path: Path
) -> None:
    """A slow pattern in its type is then ended by the agent's timeout, and blocks no other agent."""
    crew.worker("notes-its-payload")
    handle = await crew.submitted("notes-its-payload", {"path": str(tmp_path / "notes")})
    child = await handle.result(PATIENCE_SECONDS)
    assert (tmp_path / "notes").read_text() == f"read {child}\n"


async def test_a_child_uses_the_effect_store_of_its_app(crew: Crew, tmp_path: Path) -> None:
    crew.worker("verbs", "double", settings=QUICK_EFFECTS, effects=tmp_path / "effects.db")
    handle = await crew.submitted("verbs", str(tmp_path / "calls"))
    await crew.world.in_status(handle, "suspended")
    effects = SqliteEffectStore(tmp_path / "effects.db")
    assert await effects.get(f"{crew.world.namespace}/pay {handle.id}") == b'"PAY"'
    await effects.close()
    await handle.cancel()


async def test_a_child_may_send_questions_and_commands_of_its_own_turn_only(crew: Crew) -> None:
    crew.worker("forger")
    other = await crew.submitted("typed", {"id": 1})
    said = await (await crew.submitted("forger", other.id)).result(PATIENCE_SECONDS)
    assert said.pop("card") == ["NotFound", "no_such_card"], "refusals keep class and code"
    assert said == {name: ["Refused", "not_of_this_turn"] for name in said}
    assert set(said) == {"namespace", "method", "cancel", "attempt", "task", "settle"}
    assert await crew.world.history(other) == ["task.created"], "it was not touched"


async def test_the_heartbeat_reports_long_steps_of_a_child(crew: Crew, tmp_path: Path) -> None:
    crew.worker("hangs")
    handle = await crew.submitted("hangs", str(tmp_path / "calls"))

    async def shown() -> bool:
        sessions = await crew.world.store.open_sessions(crew.world.namespace)
        return any("second" in session.doing for session in sessions)

    await eventually(shown, "the step is reported")
    await handle.cancel()


class _Line:
    """Where a hold hears of its lease."""

    on_lease: Any = None


def test_a_lease_counts_from_the_moment_it_was_asked_for() -> None:
    clock, line = ManualClock(0), _Line()
    hold = RemoteHold(line, clock)  # type: ignore[arg-type]
    assert not hold.lasts_for(0), "nothing is covered before the first answer"
    asked_at = clock.monotonic()
    clock.advance(4)
    line.on_lease(asked_at, 10.0)
    assert hold.lasts_for(6)
    assert not hold.lasts_for(6.01), "a slow answer does not prolong it"
    line.on_lease(asked_at - 1, 100.0)
    assert not hold.lasts_for(6.01), "an older answer says nothing new"
    clock.advance(3)
    line.on_lease(clock.monotonic(), -1.0)
    assert not hold.lasts_for(0), "what is lost is lost"


@pytest.mark.parametrize(
    "error",
    [
        StoreError("away", hint="start it"),
        NotFound("no card", code="no_such_card", field="card"),
        StaleAttempt("gone", task_id="t"),
        EffectRejected("no", code="effect_conflict"),
        TaskFailed("it failed"),
    ],
)
def test_an_error_keeps_its_class_and_code_across_the_pipe(error: Any) -> None:
    again = error_from(error_message(error))
    assert type(again) is type(error)
    assert again.as_dict() == error.as_dict()
