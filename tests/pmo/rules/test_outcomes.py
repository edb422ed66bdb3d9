"""What each rule writes, exactly: status, reason, epoch, audit, deliverable, in one commit."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from endwell.model import commands as c
from endwell.model.card import deliverable_id
from endwell.model.message import InboxRow
from endwell.model.moments import SECOND
from endwell.model.task import Task, waits_of
from endwell.pmo.relay.messages import messages_of
from endwell.store.log import Event
from tests.pmo.rules.cases import DAY, asking, dispatched, fired, held, queued, running, suspended
from tests.store.world import World

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z")


def facts_of(events: list[Event], kind: str) -> Any:
    (found,) = [event.fact for event in events if event.type == kind]
    return found


async def card_of(world: World, card_id: str | None) -> dict[str, Any]:
    card = await world.store.card("default", card_id or "")
    assert card.kind == "task.deliverable"
    content = json.loads(card.content)
    assert isinstance(content, dict)
    return content


FORCED = [
    pytest.param(
        dispatched,
        30,
        ("timeout", "dispatch_timeout"),
        id="dispatch_timeout",
        marks=pytest.mark.covers(
            "S0.2",
            "S0.40",
            "S0.41",
            "S0.42",
            "S0.44",
            "S0.46",
            "S0.47",
            "S0.65",
            "S0.68",
            "T4",
            "T5",
        ),
    ),
    pytest.param(
        running,
        300,
        ("failed", "timeout_reaped_by_watchdog"),
        id="reap",
        marks=pytest.mark.covers("S0.51", "S0.52", "S0.54", "S0.55", "S0.65", "S0.68", "T4", "T5"),
    ),
]


@pytest.mark.parametrize(("stage", "after", "ended"), FORCED)
async def test_the_forced_end_of_a_turn_is_one_commit(
    world: World, stage: Any, after: float, ended: tuple[str, str]
) -> None:
    """Epoch, audit, deliverable and the turn's end are one transaction, which no crash divides."""
    task = await stage(world)
    world.advance(after)
    found, events = await fired(world, task)

    assert [event.type for event in events] == ["task.reaped", "turn.ended", "task.retry_scheduled"]
    turn, audit = facts_of(events, "turn.ended"), facts_of(events, "task.reaped")
    assert (turn.turn_id, turn.outcome, turn.error) == (task.turn_id, *ended)
    assert (audit.reason, audit.attempt_id, audit.session_id) == (ended[1], task.attempt_id, task.session_id)
    assert found.epoch == turn.epoch == audit.epoch == task.epoch + 1
    assert {event.epoch for event in events} == {found.epoch}, "the messages name the committed epoch"
    assert (found.turn_id, found.attempt_id, found.session_id, found.waits) == (None,) * 4
    (row,) = await world.store.turns_of_task("default", task.id)
    assert (row.outcome, row.error, row.epoch) == (*ended, found.epoch)

    card = await card_of(world, turn.deliverable_card)
    assert (card["kind"], card["fields"]["reason"]) == ("fallback_deliverable", ended[1])
    assert (card["diagnostics"]["agent_turn_id"], card["diagnostics"]["terminal_status"]) == (
        task.turn_id,
        ended[0],
    )


@pytest.mark.parametrize("stage", [queued, dispatched, asking, held])
@pytest.mark.covers("S0.51")
async def test_no_status_but_running_is_reaped(world: World, stage: Any) -> None:
    task = await stage(world)
    world.advance(301)  # long past active_reap_seconds
    _, events = await fired(world, task)

    said = [event.fact for event in events if event.type in ("task.reaped", "turn.ended")]
    assert {fact.reason for fact in said if hasattr(fact, "reason")} <= {"dispatch_timeout"}
    if stage is asking:
        assert (await world.task(task)).status == "suspended"


@pytest.mark.covers("S0.8", "S0.67")
async def test_a_reaped_task_without_a_try_left_ends_with_its_fallback_deliverable(world: World) -> None:
    task = await running(world, retry_policy='{"max_retries":0}')
    world.advance(300)
    found, events = await fired(world, task)

    assert [event.type for event in events] == ["task.reaped", "turn.ended", "task.failed", "task.dlq"]
    assert (found.status, found.reason) == ("failed", "retries_exhausted")
    assert facts_of(events, "turn.ended").error == "timeout_reaped_by_watchdog"
    ending = facts_of(events, "task.failed")
    assert ending.error.code == "timeout_reaped_by_watchdog"
    assert ending.deliverable_card == found.deliverable_card == deliverable_id(task.id)
    card = await card_of(world, found.deliverable_card)
    assert (card["kind"], card["error"]["code"]) == ("fallback_deliverable", "timeout_reaped_by_watchdog")


@pytest.mark.covers("S0.66", "T5")
async def test_a_deliverable_that_cannot_be_written_does_not_keep_the_task_from_ending(world: World) -> None:
    """N10: its id is taken; the task still ends with its terminal event."""
    task = await running(world, retry_policy='{"max_retries":0}')
    await world.database.sql(
        "INSERT INTO cards (namespace, id, task_id, kind, content, hash, created_at) "
        f"SELECT namespace, '{deliverable_id(task.id)}', task_id, 'task.deliverable', content, hash, 0"
        f" FROM cards WHERE id = '{task.payload_card}'"
    )
    world.advance(300)
    found, events = await fired(world, task)

    assert found.status == "failed"
    assert [event.type for event in events][-2:] == ["task.failed", "task.dlq"]


@pytest.mark.covers("S2.21", "S0.49")
async def test_a_turn_without_a_claim_goes_to_a_person_after_its_last_retry(world: World) -> None:
    task = await queued(world, owner="ada", retry_policy='{"max_retries":0}')
    task = await world.do(world.to(c.Dispatch, task))
    world.advance(30)
    found, events = await fired(world, task)

    assert [event.type for event in events] == ["task.reaped", "turn.ended", "task.blocked"]
    assert (found.status, found.reason, found.owner) == ("blocked", "dispatch_timeout", "ada")
    assert (found.clock_at, found.dead_letter) == (found.ends_by, None)
    assert json.loads(found.error or "")["code"] == "dispatch_timeout"
    card = await card_of(world, facts_of(events, "turn.ended").deliverable_card)
    assert card["fields"]["reason"] == "dispatch_timeout"
    await world.do(world.to(c.Assign, task, owner="ada", actor="ada"))
    world.advance(30 * DAY)
    assert (await world.task(task)).status == "blocked", "ada accepted it: only her reminder is due"
    await world.do(world.to(c.ClockFired, task))
    assert (await world.history(task))[-1] == "task.reminded"

    moved = await world.do(world.to(c.Unblock, task, actor="ada"))
    assert (moved.status, moved.retry_count, moved.dispatch_count) == ("queued", 0, 1)
    assert moved.ends_by >= found.ends_by + 30 * DAY * SECOND, "the time it was held is given back"


@pytest.mark.covers("S0.5", "S0.49", "S0.84")
async def test_a_turn_that_no_worker_claims_ends_the_task_by_itself_when_its_owner_does_not_act(
    world: World,
) -> None:
    """The deliverable card, the terminal event and the dead letter are all there."""
    task = await queued(world, owner="ada", retry_policy='{"max_retries":0}')
    task = await world.do(world.to(c.Dispatch, task))
    world.advance(30)
    blocked, _ = await fired(world, task)
    world.advance(DAY)
    found, events = await fired(world, task)

    assert blocked.status == "blocked"
    assert [event.type for event in events] == ["task.timeout", "task.dlq"]
    assert (found.status, found.reason, found.dead_letter) == ("timeout", "dispatch_timeout", "open")
    card = await card_of(world, found.deliverable_card)
    assert (card["status"], card["reason"]) == ("timeout", "dispatch_timeout")
    assert card["error"]["message"] == "no worker took the turn in time"


@pytest.mark.covers("S0.36", "S0.37", "S0.38", "S0.39", "T1", "T1b", "T3")
async def test_an_offer_without_a_claim_is_added_to_the_inbox_again_and_rung_for(world: World) -> None:
    """T1: its timeout does not move. T3: each ring adds a row, and one claim consumes them all."""
    task = await dispatched(world)
    for ring in (1, 2):
        world.advance(10)
        world.bells.clear()
        found, events = await fired(world, task)
        assert [event.type for event in events] == ["task.rang_again"]
        assert world.bells == {"work:default:coder"}
        assert (found.status, found.epoch, found.turn_id) == ("dispatched", task.epoch, task.turn_id)
        assert (found.dispatch_by, found.dispatch_count) == (task.dispatch_by, task.dispatch_count)
        rows = await world.store.inbox_page("default", task_id=task.id)
        assert [(row.status, row.turn_id) for row in rows] == [("pending", task.turn_id)] * (ring + 1)
        assert len({row.correlation_id for row in rows}) == ring + 1
        assert len({envelope(row) for row in rows}) == 1, "the whole envelope, as it was first sent"

    claimed = await world.claim(await world.task(task))
    rows = await world.store.inbox_page("default", task_id=task.id)
    assert {(row.status, row.attempt_id) for row in rows} == {("processing", claimed.attempt_id)}
    nothing, events = await fired(world, task)
    assert (nothing.status, events) == ("running", []), "T1b: a turn that runs is not thrown back"
    await world.do(world.finish(claimed))
    rows = await world.store.inbox_page("default", task_id=task.id)
    assert {row.status for row in rows} == {"consumed"}
    assert await world.problems() == []


def envelope(row: InboxRow) -> InboxRow:
    """The fields that all rows of one turn share."""
    return replace(row, id="", correlation_id="", created_at=0)


@pytest.mark.covers("S0.1", "S0.37")
async def test_an_offer_that_was_lost_is_written_again_and_taken(world: World) -> None:
    task = await dispatched(world, channel="ops")
    (before,) = await world.store.inbox_page("default", task_id=task.id)
    await world.database.sql("DELETE FROM agent_inbox")
    world.advance(10)
    world.bells.clear()
    await fired(world, task)

    (again,) = await world.store.inbox_page("default", task_id=task.id)
    assert envelope(again) == envelope(before)
    assert world.bells == {"work:default:coder/ops"}
    claimed = await world.claim(await world.task(task))
    assert (await world.do(world.finish(claimed))).status == "succeeded"
    (row,) = await world.store.inbox_page("default", task_id=task.id)
    assert row.status == "consumed"


@pytest.mark.covers("S0.2")
@pytest.mark.parametrize("watchdog", [c.ClockFired, c.InjectTimeout], ids=["the PMO's", "a worker's"])
async def test_an_overdue_tool_is_reported_alike_by_either_watchdog(world: World, watchdog: Any) -> None:
    task = await suspended(world)
    world.advance(60)
    await world.store._commit((world.to(watchdog, task, actor="watchdog"),))  # the report, and no further

    (call,) = [wait.tool_call_id for wait in waits_of(task)]
    (row,) = await world.store.inbox_page("default", task_id=task.id)
    assert (row.message_type, row.correlation_id, row.status) == ("timeout", call, "pending")
    assert (row.turn_id, row.turn_epoch, row.agent) == (task.turn_id, task.epoch, "coder")
    report = {"status": "timeout", "error": {"code": "tool_timeout", "message": "no answer came in time"}}
    assert json.loads(row.payload or "") == report
    card = await world.store.card("default", row.card_id or "")
    assert (card.kind, json.loads(card.content)) == ("tool.result", report)
    assert (await world.task(task)).status == "suspended"
    assert (await world.history(task))[-1] == "wait.timed_out"


@pytest.mark.covers("S0.2")
async def test_a_turn_ends_alike_by_either_watchdog(
    world: World,
) -> None:
    """The same events, the same status, the same deliverable and the same messages to the outside."""
    ends = []
    tasks = [await suspended(world) for _ in range(2)]
    world.advance(60)
    await world.open_session("s2")
    watchdogs: tuple[type[c.TaskCommand], ...] = (c.ClockFired, c.InjectTimeout)
    for task, watchdog in zip(tasks, watchdogs, strict=True):
        await world.do(world.to(watchdog, task, actor="watchdog"))
        resumed = await world.task(task)
        ended = await world.do(world.finish(await world.claim(resumed, "s2")))
        assert ended.deliverable_card is not None
        card = await world.store.card("default", ended.deliverable_card)
        sent = await messages_about(world, ended)
        assert [one["data"]["status"] for one in sent if one["type"].endswith(".task")] == ["success"]
        history = await world.history(task)
        ends.append((resumed.status, ended.status, history, card.kind, card.content, sent))

    assert ends[0] == ends[1]


async def messages_about(world: World, task: Task) -> list[dict[str, Any]]:
    """The relay's messages about a task, without the ids and times in which any two tasks differ."""
    log = await world.store.events_after("default", "", 1000)
    page = [one for one in log if one.event.task_id == task.id]
    sent = []
    for message in messages_of(page, {task.id: task}, {}):
        text = MOMENT.sub("a moment", message.body.decode().replace(task.id, "the task"))
        sent.append(json.loads(text))
        sent[-1]["data"].get("metadata", {}).pop("attempt_id", None)
    return sent


@pytest.mark.covers("T1")
async def test_rings_never_delay_the_dispatch_timeout(world: World) -> None:
    task = await dispatched(world)
    history: list[str] = []
    for _ in range(6):
        world.advance(5)
        await world.do(world.to(c.ClockFired, task))
        history = await world.history(task)
    assert history.count("task.rang_again") == 2
    assert (await world.task(task)).reason == "dispatch_timeout"


@pytest.mark.covers("S0.6", "T2")
async def test_the_suspend_cap_ends_a_turn_that_was_never_resumed(world: World) -> None:
    task = await suspended(world)
    await world.database.sql("DELETE FROM cards WHERE kind = 'tool.call'")
    world.advance(60)
    skipped, _ = await fired(world, task)
    assert skipped.status == "suspended", "a tool without its call is skipped"
    world.advance(30)
    found, events = await fired(world, task)

    assert (found.status, found.reason, found.retry_count) == ("queued", "suspend_timeout", 1)
    assert [event.type for event in events] == ["task.reaped", "turn.ended", "task.retry_scheduled"]
    assert facts_of(events, "turn.ended").outcome == "timeout"


async def test_the_absence_of_all_pmos_does_not_count_as_missing_progress(world: World) -> None:
    """The machine slept for ten minutes: neither worker nor PMO ran."""
    task = await running(world)
    world.advance(600)
    spared = await world.do(world.to(c.ClockFired, task, away=590 * SECOND))

    assert (spared.status, spared.attempt_id, spared.epoch) == ("running", task.attempt_id, task.epoch)
    assert spared.progress_by == (task.progress_by or 0) + 590 * SECOND
    world.advance(300)
    late = await world.do(world.to(c.ClockFired, task))
    assert (late.status, late.reason) == ("queued", "timeout_reaped_by_watchdog")
