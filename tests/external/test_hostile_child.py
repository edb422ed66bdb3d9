"""A child process that writes to its worker's pipe itself: it reaches its own task and nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from endwell import AsyncHandle
from endwell.external.child_protocol import LINE_BYTES
from endwell.model.card import child_id, record_id
from endwell.runtime import SystemClock
from endwell.runtime.processes import pid_alive
from tests.external.test_isolation import Crew, gone, pids_in
from tests.patience import PATIENCE_SECONDS
from tests.support.world import TINY, World, eventually

REFUSED = "not_of_this_turn"
FLOOD_BYTES = 8 * LINE_BYTES
"""How much a worker may grow by a child that floods it: some lines in different stages of being read."""


@pytest.fixture
async def crew(sqlite_url: str) -> AsyncIterator[Crew]:
    async with World(sqlite_url, settings=TINY, clock=SystemClock()) as world:
        crew = Crew(world)
        try:
            yield crew
        finally:
            crew.end()


async def answers(crew: Crew, *asks: Any) -> list[Any]:
    """What the worker says to a child that asks this."""
    handle = await crew.submitted("raw", json.dumps({"asks": list(asks)}))
    said: list[Any] = await handle.result(PATIENCE_SECONDS)
    return said


async def left(crew: Crew, last: dict[str, Any], *asks: Any) -> AsyncHandle:
    """A task whose child says this as its last word."""
    return await crew.submitted("raw", json.dumps({"asks": list(asks), "last": last}))


def sealed(value: Any) -> dict[str, str]:
    """Content as a command carries it."""
    data = json.dumps(value, separators=(",", ":")).encode()
    return {"content": base64.b64encode(data).decode(), "content_hash": hashlib.sha256(data).hexdigest()}


async def doubtful(crew: Crew, path: Any) -> AsyncHandle:
    """A task in a person's hands: whether its effect took place is not known."""
    handle = await crew.submitted("asks-a-person", str(path))
    await crew.world.in_status(handle, "blocked")
    return handle


async def test_hostile_child_reads_no_card_effect_or_session_of_another_task(
    crew: Crew, tmp_path: Any
) -> None:
    crew.worker("raw", "asks-a-person")
    other = await doubtful(crew, tmp_path / "calls")
    session = (await crew.world.store.open_sessions(crew.world.namespace))[0].id
    said = await answers(
        crew,
        ("card", f"{other.id}.in"),
        ("cards_by_ids", [f"{other.id}.in"]),
        ("cards_page", f"{other.id}.", f"{other.id}/", 32),
        ("cards_page", "", "~", 32),
        ("cards_between", f"{other.id}.", f"{other.id}/"),
        ("effect", "the payment"),
        ("session", session),
        ("task", other.id),
        ("tasks_by_ids", [other.id]),
        ("card", 7),
        ("card", f"{other.id}.in", "more"),
        ("__class__",),
    )
    assert said == [REFUSED] * 12


async def test_hostile_child_settles_no_effect_of_another_task(crew: Crew, tmp_path: Any) -> None:
    crew.worker("raw", "asks-a-person")
    other = await doubtful(crew, tmp_path / "calls")
    effect = await crew.world.store.effect(crew.world.namespace, "the payment")
    assert effect is not None
    key: dict[str, Any] = {"key": "the payment"}
    step = {"step": "1:()pay#1", "timeout": 1000}
    said = await answers(
        crew,
        ("commit", ("SettleEffect", {**key, "verdict": "done", **sealed("paid")})),
        ("commit", ("SettleEffect", {**key, "verdict": "not_done", "may_repeat": True, "holder_gone": True})),
        ("commit", ("SettleEffect", {**key, "verdict": "abandon"})),
        ("commit", ("IntendEffect", {**key, **step, "args_hash": effect.args_hash})),
        ("commit", ("SettleEffect", {**key, "verdict": "not_done", "holder_gone": True})),
        ("commit", ("FinishEffect", {**key, "step": "1:()pay#1", **sealed("paid")})),
        ("commit", ("DoubtEffect", {**key, "reason": "x"})),
        ("commit", ("Block", {"reason": "effect_unknown", "effect_key": "the payment"})),
    )
    assert said == [REFUSED] * 8
    assert await crew.world.store.effect(crew.world.namespace, "the payment") == effect, "it is untouched"
    assert (await other.task()).status == "blocked"


async def test_hostile_child_may_not_say_that_the_holder_of_its_effect_is_gone(crew: Crew) -> None:
    """The worker that holds it is this one, and alive."""
    crew.worker("raw")
    step = {"step": "1:()pay#1", "timeout": 3_600_000_000, "args_hash": "a"}
    said = await answers(
        crew,
        ("commit", ("IntendEffect", {"key": "mine", **step})),
        ("effect", "mine"),
        ("commit", ("SettleEffect", {"key": "mine", "verdict": "done", **sealed(1), "holder_gone": True})),
    )
    assert said[0][0]["ledger"]["type"] == "AllowExecute", "an effect of its own is its own"
    assert said[1]["status"] == "intended"
    assert "refusal" not in said[2][0]


FORBIDDEN: list[tuple[str, dict[str, Any]]] = [
    ("Cancel", {}),
    ("Finish", {"result": "MQ==", "result_hash": "x"}),
    ("Approve", {"approval_id": "a"}),
    ("Progress", {"command_id": "another.end"}),
    ("Progress", {"causation_id": "x"}),
    ("Progress", {"actor": "ada"}),
    ("Progress", {"note": "a\0b"}),
    ("Progress", {"without_news": -1}),
    ("StartStep", {"step": "1:()x#1", "timeout": 2**63}),
    ("StartStep", {"step": "9:()x#1", "timeout": 1}),
    ("StartStep", {"step": "1:()x\n#1", "timeout": 1}),
    ("RecordStep", {"step": "1:()x#1", **sealed(1), "content_hash": "f" * 64}),
    ("RecordStep", {"step": "1:()x#1", **sealed(1), "result_type": "side_effect_committed"}),
    ("KeepDraft", {"content": "e30", "content_hash": ""}),
    ("Block", {"reason": "effect_unknown", "effect_key": "k", "owner": "eve"}),
    ("Block", {"reason": "needs_input"}),
]


async def test_hostile_child_hands_in_no_command_that_its_context_would_not(crew: Crew) -> None:
    crew.worker("raw")
    said = await answers(crew, *(("commit", command) for command in FORBIDDEN))
    assert dict(zip(map(str, FORBIDDEN), said, strict=True)) == {str(one): REFUSED for one in FORBIDDEN}
    assert await answers(crew, ("commit", *[("Progress", {})] * 17)) == [REFUSED]


def call_of(step: str, **fields: Any) -> dict[str, Any]:
    return {"tool_call_id": f"@task.s.1:(){step}#1", "within": 60_000_000, **fields}


async def test_hostile_child_cannot_call_a_guarded_agent_without_its_approval(crew: Crew) -> None:
    crew.worker("raw", "guarded")
    call = call_of("x", kind="call", name="guarded", is_child=True)
    child = {"tool_call_id": call["tool_call_id"], "agent": "guarded", "payload": "NQ=="}
    handle = await left(crew, {"suspended": {"calls": [call], "children": [child]}})
    await crew.world.in_status(handle, "suspended")
    called = await crew.world.store.task(crew.world.namespace, child_id(record_id(handle.id, "1:()x#1")))
    assert called is not None
    assert called.status == "waiting_approval", "the worker asks, although the child did not"
    await handle.cancel()


def lies() -> dict[str, Any]:
    tool = sealed({"arguments": 5, "tool_name": "refund"})
    other = sealed({"arguments": 5, "tool_name": "elsewhere"})
    call = call_of("x", kind="call", name="guarded", is_child=True)
    child = {"tool_call_id": call["tool_call_id"], "agent": "guarded", "payload": "NQ=="}
    return {
        "tool without its approval": {"calls": [call_of("x", kind="tool", name="refund", **tool)]},
        "tool by another name": {"calls": [call_of("x", kind="tool", name="free", **tool)]},
        "content of another": {
            "calls": [{**call_of("x", kind="tool", name="elsewhere", **other), "content_hash": "f"}]
        },
        "call without a task": {"calls": [call_of("x", kind="call", name="guarded")]},
        "task without a call": {"calls": [], "children": [child]},
        "call of another task": {"calls": [{**call, "tool_call_id": "t.s.1:()x#1"}], "children": [child]},
        "agent called as a tool": {"calls": [{**call, "kind": "tool"}], "children": [child]},
        "an age": {"calls": [call_of("x", kind="timer", within=2**62)]},
        "nothing": {"calls": []},
        "another question": {
            "calls": [call_of("x", kind="approval", name="a?", **sealed({"question": "b?", "shown": 1}))]
        },
        "nothing shown": {"calls": [call_of("x", kind="approval", name="a?", **sealed({"question": "a?"}))]},
        "no question": {"calls": [call_of("x", kind="approval", name="a?")]},
        "no arguments": {
            "calls": [call_of("x", kind="tool", name="elsewhere", **sealed({"tool_name": "elsewhere"}))]
        },
        "timer that asks": {"calls": [call_of("x", kind="timer", **sealed(1))], "children": [child]},
        "another agent": {"calls": [call], "children": [{**child, "agent": "double"}]},
        "another key": {"calls": [call], "children": [{**child, "agent_key": "a\0b"}]},
    }


DEEP = "[" * 50_000
SIGNAL = {"suspended": {"calls": [call_of("x", kind="signal", name="A b")], "children": []}}
HUGE = "9" * 400
NONSENSE: dict[str, tuple[list[str], str]] = {
    "a deep result": (['{"result":' + DEEP], "agent_died"),
    "a deep part": (['{"result":' + "[" * 500 + "]" * 500 + "}"], "result_not_storable"),
    "a huge result": (['{"result":' + HUGE + "}"], "result_not_storable"),
    "an endless number": (['{"result":1e999}'], "agent_died"),
    "half a character": (['{"result":"\\ud800"}'], "agent_died"),
    "bytes": (['{"result":"\xff"}'], "agent_died"),
    "half a line": (['{"result":1'], "agent_died"),
    "no object": (["[1]"], "agent_died"),
    "a huge number of a request": (['{"ask":"lease","id":' + HUGE + ',"with":{}}'], "agent_bad_word"),
    "one number for many requests": (['{"ask":"lease","id":1,"with":{}}'] * 40, "agent_died"),
    "a request of another type": (['{"ask":"store","id":1,"with":{"method":7}}'], "agent_bad_word"),
    "steps that are none": (['{"doing":7}'], "agent_bad_word"),
    "an error that is none": (['{"error":"x"}'], "agent_bad_word"),
    "a retry in an age": (['{"error":{"code":"x","retryable":false},"after":' + HUGE + "}"], "x"),
    "a retry at no time": (['{"error":{"code":"x"},"after":[1]}'], "x"),
    "a signal by no name": ([json.dumps(SIGNAL)], "bad_name"),
}


async def test_unreadable_output_of_a_child_fails_only_its_own_turn(crew: Crew) -> None:
    crew.worker("babbles", "double")
    for what, (lines, code) in NONSENSE.items():
        handle = await crew.submitted("babbles", lines)
        task = await crew.world.in_status(handle, "failed")
        assert (await crew.error_of(handle))["code"] == code, what
        assert task.dispatch_count == 1, f"{what}: the turn was not begun again"
        assert await (await crew.submitted("double", 2)).result(PATIENCE_SECONDS) == 4, what


async def test_call_of_an_agent_that_no_store_can_name_is_refused_at_once(
    crew: Crew, postgres_url: str
) -> None:
    """A store that refuses a question looks as if it were away: the turn would ask for ever."""
    async with World(postgres_url, settings=TINY, clock=SystemClock()) as world:
        other = Crew(world)
        try:
            other.worker("raw")
            call = call_of("x", kind="call", name="a\0b", is_child=True)
            child = {"tool_call_id": call["tool_call_id"], "agent": "a\0b", "payload": "MQ=="}
            handle = await left(other, {"suspended": {"calls": [call], "children": [child]}})
            assert (await other.error_of(handle))["code"] in (REFUSED, "bad_name")
        finally:
            other.end()


async def test_an_endless_retry_delay_is_cut_to_the_longest_backoff(crew: Crew) -> None:
    crew.worker("forgetful")
    handle = await crew.submitted("forgetful")
    assert (await crew.world.in_status(handle, "failed")).dispatch_count == 1


async def test_hostile_child_may_not_wait_for_calls_of_others(crew: Crew) -> None:
    crew.worker("raw")
    for what, said in lies().items():
        handle = await left(crew, {"suspended": {"children": [], **said}})
        assert (await crew.error_of(handle))["code"] == REFUSED, what


@pytest.mark.parametrize("kind", ["signal", "call"])
async def test_hostile_child_may_not_wait_for_one_call_twice(crew: Crew, kind: str) -> None:
    """One answer would be counted for two waits, so that the task would wait for ever."""
    crew.worker("raw", "guarded")
    call = call_of("x", kind=kind, name="guarded", is_child=kind == "call")
    child = {"tool_call_id": call["tool_call_id"], "agent": "guarded", "payload": "NQ=="}
    said = {"calls": [call, call], "children": [child] * (kind == "call")}
    handle = await left(crew, {"suspended": said})
    assert (await crew.error_of(handle))["code"] == "same_wait_twice"


async def test_hostile_child_that_says_it_left_its_turn_fails_it(crew: Crew) -> None:
    """Otherwise its task would be held by a worker at which nothing runs."""
    crew.worker("raw")
    handle = await left(crew, {"handed_over": True})
    assert (await crew.error_of(handle))["code"] == "agent_gave_turn_up"
    handle = await left(crew, {"lost": {"type": "StaleAttempt", "code": "x", "message": "y"}})

    rude = {"error": {"code": "x\ny", "type": "t" * 9999, "message": "m\0" * 9999}, "after": "soon"}
    error = await crew.error_of(await left(crew, rude))
    assert (error["code"], len(error["type"])) == ("exception", 100)
    assert len(error["message"]) <= 2000


async def test_hostile_child_that_always_gives_its_turn_back_is_stopped_by_the_guard(crew: Crew) -> None:
    crew.worker("raw")
    handle = await left(crew, {"lost": {"type": "StaleAttempt", "code": "x", "message": "y"}})

    pmo = await crew.world.supervisor()

    async def has_ended() -> bool:
        await pmo.run_once()
        return bool((await handle.task()).is_ended)

    await eventually(has_ended, "it is given back, and counted")
    assert (await handle.task()).reason == "runaway_guard"


async def test_forged_record_is_no_answer_of_a_person(crew: Crew) -> None:
    """A record that a turn wrote itself does not count where a person's decision is waited for."""
    crew.worker("forges-approval")
    handle = await crew.submitted("forges-approval")
    assert (await crew.error_of(handle))["code"] == "replay_mismatch"


def peak_memory(pid: int) -> int:
    """The most memory that a process has ever had, in bytes, or what it has now where that is not told."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return int(psutil.Process(pid).memory_info().rss)
    return next(1024 * int(line.split()[1]) for line in status.open() if line.startswith("VmHWM:"))


@pytest.mark.parametrize("kind", ["asks", "large", "doing", "wide", "wide result"])
async def test_child_that_floods_its_worker_and_reads_nothing_costs_it_little(crew: Crew, kind: str) -> None:
    worker = crew.worker("floods", "double")
    assert await (await crew.submitted("double", 1)).result(PATIENCE_SECONDS) == 2
    before = peak_memory(worker.pid)
    flood = await crew.submitted("floods", kind)
    await crew.world.in_status(flood, "running", "failed")
    for number in range(20):  # its neighbours are served
        assert await (await crew.submitted("double", number)).result(PATIENCE_SECONDS) == 2 * number
    assert peak_memory(worker.pid) - before < FLOOD_BYTES
    await flood.cancel()
    await eventually(lambda: len(psutil.Process(worker.pid).children(recursive=True)) <= 2, "it is killed")


async def test_a_child_that_stops_its_warden_is_ended_soon_after_its_time(crew: Crew, tmp_path: Path) -> None:
    crew.worker("stops-its-warden")
    handle = await crew.submitted("stops-its-warden", str(tmp_path / "pids"))
    pids = await pids_in(tmp_path / "pids")
    try:
        assert (await crew.error_of(handle))["code"] == "agent_timeout"
        await gone(pids)
    finally:
        for pid in filter(pid_alive, pids):
            os.kill(pid, signal.SIGKILL)
