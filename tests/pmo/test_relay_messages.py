"""What the relay says: the messages of each state, step and ending, exactly."""

from __future__ import annotations

import asyncio

import pytest

from endwell import Context
from endwell.errors import StepFailed, StepTimeout
from endwell.model import commands as c
from endwell.model.content import fingerprint
from endwell.model.task import Task
from tests.pmo.relaying import done, everything, relay_of
from tests.servers.webhook import Receiver
from tests.support.world import World


@pytest.mark.covers("S0.67")
async def test_the_message_of_a_turns_end_has_epoch_deliverable_and_id(
    relayed: World, receiver: Receiver
) -> None:
    task_id = await done(relayed, "clerk", {"id": 1})
    await everything(await relay_of(relayed))
    task = await relayed.store.task(relayed.namespace, task_id)
    (ended,) = receiver.of("task")
    assert ended["task_id"] == task_id
    assert (ended["status"], ended["error"], ended["is_final"]) == ("success", None, True)
    assert ended["epoch"] == ended["turn_epoch"] == task.epoch
    assert ended["deliverable_card_id"] == task.deliverable_card
    card = await relayed.store.card(relayed.namespace, ended["deliverable_card_id"])
    assert card.content == b'"done"'

    events = {e.event_id: e for e in await relayed.store.events_of_task(relayed.namespace, task_id)}
    assert events[ended["event_id"]].type == "turn.ended"
    (message,) = (m for m in receiver.messages if m["data"] == ended)
    assert message["id"] == f"{ended['event_id']}.task"
    assert message["specversion"] == "1.0"
    assert message["subject"] == f"endwell.v1.{relayed.namespace}.main.evt.agent.clerk.task"
    assert message["source"] == f"/endwell/{relayed.namespace}"


async def test_states_and_steps_are_sent_in_order(relayed: World, receiver: Receiver) -> None:
    task_id = await done(relayed, "clerk")
    await everything(await relay_of(relayed))
    turn = f"{task_id}.t1"
    said = [
        (m["type"].rpartition(".")[2], m["data"].get("status") or m["data"]["phase"])
        for m in receiver.messages
    ]
    assert said == [
        ("state", "dispatched"),
        ("state", "running"),
        ("step", "completed"),
        ("state", "idle"),
        ("task", "success"),
    ]
    assert {m["data"]["agent_turn_id"] for m in receiver.messages} == {turn}
    (step,) = receiver.of("step")
    assert "price" in step["step_id"]
    assert step["metadata"]["result_type"] == "success"
    assert len({m["id"] for m in receiver.messages}) == len(receiver.messages)


@pytest.mark.covers("S3.28", "S3.32", "S3.39", "S3.40")
async def test_a_recorded_step_is_sent_with_all_its_names(relayed: World, receiver: Receiver) -> None:
    @relayed.app.agent("worker")
    async def worker(ctx: Context) -> None:
        await ctx.step("price", lambda: 15)
        await ctx.effect("pay", lambda: "paid")
        with pytest.raises(StepTimeout):
            await ctx.step("slow", asyncio.sleep, 30, timeout=0.05)
        with pytest.raises(StepFailed):
            await ctx.step("hopeless", asyncio.sleep, 30, timeout=0.05, on_timeout="permanent")

    await done(relayed, "worker")
    await everything(await relay_of(relayed))
    said = [data for data in receiver.of("step") if data["phase"] in ("completed", "failed")]
    about = [(data["step_id"], data["metadata"]) for data in said]
    assert [(step, each["result_type"], each["events"]) for step, each in about] == [
        ("1:()price#1", "success", ["command_committed", "node_finished"]),
        (
            "1:()pay#1",
            "side_effect_committed",
            ["tool_invocation_finished", "command_committed", "node_finished"],
        ),
        ("1:()slow#1", "retryable_failure", ["node_finished"]),
        ("1:()hopeless#1", "permanent_failure", ["node_finished"]),
    ]


@pytest.mark.covers("S0.9", "S0.67")
async def test_failed_partial_and_cancelled_endings_have_their_own_status(
    relayed: World, receiver: Receiver
) -> None:
    failed = await done(relayed, "picky")
    partial = await done(relayed, "drafter")
    queued = await relayed.submitted("clerk")
    await queued.cancel("changed my mind")
    await everything(await relay_of(relayed))
    said = {data["task_id"]: data for data in receiver.of("task")}
    assert (said[failed]["status"], said[failed]["error"]) == ("failed", "agent_gave_up")
    assert "not today" in said[failed]["error_message"]
    assert (said[partial]["status"], said[partial]["task_status"]) == ("failed", "failed")
    assert [said[task]["partial"] for task in (failed, partial, queued.id)] == [False, True, False]
    assert (said[queued.id]["status"], said[queued.id]["agent_turn_id"]) == ("canceled", None)
    assert all(data["deliverable_card_id"] for data in said.values())


@pytest.mark.covers("S0.45", "S0.48", "S0.49", "S0.9")
@pytest.mark.parametrize(("agent", "then"), [("picky", "blocked"), ("clerk", "queued")])
async def test_the_messages_of_a_dispatch_timeout_are_exact(
    relayed: World, receiver: Receiver, agent: str, then: str
) -> None:
    """A task without a claim goes to a person after its last retry."""
    session = await relayed.silent_session(agent)
    handle = await relayed.submitted(agent)
    pmo = await relayed.supervisor()
    relayed.clock.advance(2)
    assert await pmo.dispatcher.run_once() == 1
    for _ in range(7):
        relayed.clock.advance(5)
        await session.beat()
        await pmo.watchdog.run_once()
    task = await handle.task()
    assert task.status == then
    (turn,) = await relayed.facts(handle, "turn.ended")
    await everything(await relay_of(relayed))
    idle = receiver.of("state")[-1]
    (ended,) = receiver.of("task")
    assert (idle["status"], idle["error"]) == ("idle", "dispatch_timeout")
    assert (ended["status"], ended["error"]) == ("timeout", "dispatch_timeout")
    assert (ended["reason"], ended["error_message"]) == (
        "dispatch_timeout",
        "no worker took the turn in time",
    )
    assert ended["deliverable_card_id"] == turn.deliverable_card is not None
    assert ended["turn_epoch"] == idle["turn_epoch"] == task.epoch
    (audit,) = receiver.of("step")
    assert (audit["phase"], audit["metadata"]["error"]) == ("failed", "dispatch_timeout")
    assert audit["step_id"] == f"step_reap_{ended['agent_turn_id'][-8:]}"


async def test_a_turn_that_is_held_for_a_person_is_published_as_suspended_with_the_reason(
    relayed: World, receiver: Receiver
) -> None:
    session = await relayed.silent_session("clerk", lease_seconds=3600)
    handle = await relayed.submitted("clerk")
    (offer,) = await relayed.claimed(session, "clerk")
    await relayed.store.commit_one(
        c.Block(
            command_id="held",
            namespace=relayed.namespace,
            task_id=handle.id,
            attempt_id=offer.task.attempt_id,
            reason="effect_unknown",
            effect_key="pay:1",
            owner="ada",
        )
    )

    await everything(await relay_of(relayed))

    held = receiver.of("state")[-1]
    assert (held["status"], held["error"], held["agent_turn_id"]) == (
        "suspended",
        "effect_unknown",
        f"{handle.id}.t1",
    )
    assert (held["metadata"]["activity"], held["metadata"]["owner"]) == ("awaiting_person", "ada")
    assert receiver.of("task") == []


@pytest.mark.covers("S0.53", "S0.56", "S0.67", "S0.9")
@pytest.mark.parametrize(("agent", "then"), [("picky", "failed"), ("clerk", "queued")])
async def test_the_messages_of_a_reaped_turn_are_exact(
    relayed: World, receiver: Receiver, agent: str, then: str
) -> None:
    session = await relayed.silent_session(agent, lease_seconds=3600)
    handle = await relayed.submitted(agent)
    (offer,) = await relayed.claimed(session, agent)
    relayed.clock.advance(301)
    await (await relayed.supervisor()).watchdog.run_once()
    task = await handle.task()
    assert task.status == then
    (turn,) = await relayed.facts(handle, "turn.ended")
    await everything(await relay_of(relayed))
    idle = receiver.of("state")[-1]
    (ended,) = receiver.of("task")
    assert (idle["status"], idle["error"]) == ("idle", "timeout_reaped_by_watchdog")
    assert (ended["status"], ended["error"]) == ("failed", "timeout_reaped_by_watchdog")
    assert ended["reason"] is not None
    assert ended["error_message"] == "the turn made no progress in time"
    assert ended["deliverable_card_id"] == (task.deliverable_card or turn.deliverable_card) is not None
    assert ended["turn_epoch"] == task.epoch == offer.task.epoch + 1, "bumped before anything was told"


async def test_a_suspended_turn_says_what_it_waits_for_and_keeps_its_turn(
    relayed: World, receiver: Receiver
) -> None:
    handle = await relayed.submitted("asker")
    worker = await relayed.started_worker()
    await relayed.brought_to(worker, handle, "suspended")
    first = await relay_of(relayed)
    await everything(first)
    await first.close()
    (call,) = await relayed.store.open_calls(relayed.namespace)
    await relayed.client.answer(call.tool_call_id, 42)
    await relayed.brought_to(worker, handle, "succeeded")
    await everything(await relay_of(relayed))  # another one, which saw nothing of the turn's beginning
    states = receiver.of("state")
    assert [data["status"] for data in states].count("suspended") == 1
    assert next(d for d in states if d["status"] == "suspended")["metadata"]["waiting_tool_count"] == 1
    assert {data["agent_turn_id"] for data in states} == {f"{handle.id}.t1"}
    assert [data["status"] for data in receiver.of("task")] == ["success"]


@pytest.mark.covers("S0.53", "S0.56", "S0.67", "S0.9")
@pytest.mark.parametrize(("agent", "then"), [("picky", "failed"), ("clerk", "queued")])
async def test_a_reaped_turn_with_a_draft_failed_and_its_deliverable_is_marked_as_partial(
    relayed: World, receiver: Receiver, agent: str, then: str
) -> None:
    session = await relayed.silent_session(agent, lease_seconds=3600)
    handle = await relayed.submitted(agent)
    (offer,) = await relayed.claimed(session, agent)
    await keep_draft(relayed, offer.task)
    relayed.clock.advance(301)
    await (await relayed.supervisor()).watchdog.run_once()
    assert (await handle.task()).status == then

    await everything(await relay_of(relayed))

    (ended,) = receiver.of("task")
    assert (ended["status"], ended["partial"]) == ("failed", True)


@pytest.mark.covers("S0.67")
async def test_a_turn_with_a_draft_that_ends_by_is_a_timeout_and_marked_as_partial(
    relayed: World, receiver: Receiver
) -> None:
    session = await relayed.silent_session("picky", lease_seconds=3600)
    await relayed.submitted("picky", deadline=60)
    (offer,) = await relayed.claimed(session, "picky")
    await keep_draft(relayed, offer.task)
    relayed.clock.advance(61)
    await (await relayed.supervisor()).watchdog.run_once()

    await everything(await relay_of(relayed))

    (ended,) = receiver.of("task")
    assert (ended["status"], ended["task_status"], ended["partial"]) == ("timeout", "timeout", True)


async def keep_draft(world: World, task: Task) -> None:
    content = b'"half of it"'
    command = c.KeepDraft(
        command_id="draft",
        namespace=task.namespace,
        task_id=task.id,
        attempt_id=task.attempt_id or "",
        content=content,
        content_hash=fingerprint(content),
    )
    (await world.store.commit_one(command)).unwrap()
