"""`endwell task` and `endwell why`."""

from __future__ import annotations

import pytest

from endwell.cli.task import error_text
from tests.cli.conftest import Command, Stock


def test_a_list_is_paged_newest_first(command: Command, store: str) -> None:
    ids = [
        command("submit", "clerk", f'{{"id": "{n}"}}', "--store", store, "--json").document["id"]
        for n in range(3)
    ]
    first = command("task", "list", "--limit", "2", "--store", store, "--json").document
    second = command(
        "task", "list", "--limit", "2", "--cursor", first["next"], "--store", store, "--json"
    ).document
    assert [item["id"] for item in first["items"] + second["items"]] == ids[::-1]
    assert second["next"] is None


@pytest.mark.parametrize("what", ["task", "dlq", "effect", "approval", "inbox"])
def test_a_cursor_that_no_page_has_given_is_refused(command: Command, store: str, what: str) -> None:
    answer = command(what, "list", "--cursor", "nowhere", "--store", store, "--json")
    assert (answer.code, answer.error["code"], answer.error["field"]) == (4, "bad_cursor", "cursor")


def test_a_list_is_narrowed_by_status_agent_and_key(command: Command, stock: Stock, store: str) -> None:
    def listed(*words: str) -> list[str]:
        page = command("task", "list", *words, "--store", store, "--json").document
        return [item["id"] for item in page["items"]]

    assert listed("--status", "failed") == [stock.failed]
    assert listed("--agent", "clerk") == [stock.succeeded]
    assert listed("--key", "order-42") == [stock.succeeded]
    assert listed("--key", "order-42", "--status", "failed") == []
    assert listed("--key", "order-4") == []
    assert listed() == [stock.failed, stock.succeeded]


def test_a_task_is_shown_with_payload_result_and_turns(command: Command, stock: Stock, store: str) -> None:
    good = command("task", "show", stock.succeeded, "--store", store, "--json").document
    assert (good["payload"], good["result"]) == ({"id": "42", "items": 2}, 6)
    assert [turn["outcome"] for turn in good["turns"]] == ["success"]
    bad = command("task", "show", stock.failed, "--store", store, "--json").document
    assert bad["result"] is None
    assert bad["deliverable"]["kind"] == "failure_report"
    assert bad["error"]["type"] == "ValueError"
    assert (
        'raise ValueError(f"cannot take' in bad["error"]["traceback"]
        or "in picky" in bad["error"]["traceback"]
    )


def test_a_list_has_no_tracebacks(command: Command, stock: Stock, store: str) -> None:
    (item,) = command("task", "list", "--status", "failed", "--store", store, "--json").document["items"]
    assert set(item["error"]) == {"code", "type", "message", "retryable"}


def test_the_history_is_every_event_in_order_and_chained(command: Command, stock: Stock, store: str) -> None:
    events = command("task", "history", stock.succeeded, "--store", store, "--json").document["items"]
    assert [event["version"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["type"] == "task.created"
    assert events[-1]["type"] == "task.succeeded"
    assert [event["prev_hash"] for event in events] == ["", *(event["hash"] for event in events[:-1])]


def test_a_cancelled_task_says_why_and_cannot_be_cancelled_again(command: Command, store: str) -> None:
    task = command("submit", "clerk", '{"id": "1"}', "--store", store, "--json").document
    ended = command("task", "cancel", task["id"], "--reason", "ordered twice", "--store", store, "--json")
    assert (ended.document["status"], ended.document["reason"]) == ("cancelled", "ordered twice")
    again = command("task", "cancel", task["id"], "--store", store, "--json")
    assert (again.code, again.error["code"]) == (4, "task_ended")


def test_retry_starts_a_waiting_task_now_and_replays_an_ended_one(command: Command, store: str) -> None:
    task = command("submit", "clerk", '{"id": "1"}', "--delay", "1h", "--store", store, "--json").document
    rushed = command("task", "retry", task["id"], "--store", store, "--json").document
    assert rushed["id"] == task["id"]
    assert rushed["run_at"] < task["run_at"]
    command("task", "cancel", task["id"], "--store", store)
    again = command("task", "retry", task["id"], "--store", store, "--json").document
    assert again["id"] != task["id"]
    assert again["replay_of"] == task["id"]


def test_why_says_what_a_task_waits_for_and_what_one_can_do(
    command: Command, stock: Stock, store: str
) -> None:
    task = command("submit", "clerk", '{"id": "1"}', "--store", store, "--json").document
    waiting = command("why", task["id"], "--store", store, "--json").document
    assert waiting["waiting_for"][0]["kind"] == "no_live_worker"
    assert waiting["next"] == {"rule": "ends_by", "at": task["ends_by"]}
    dead = command("why", stock.failed, "--store", store, "--json").document
    assert dead["actions"] == ["dlq replay", "dlq abandon"]
    text = command("why", stock.failed, "--store", store).out
    assert f"endwell dlq replay {stock.failed}" in text
    assert "error     exception: ValueError cannot take -1\\x1b[31m" in text
    assert "a live worker for clerk" in command("why", task["id"], "--store", store).out


def test_an_error_without_a_type_is_shown_without_a_gap() -> None:
    """A task ended by a watchdog has no exception."""
    error = {"code": "timeout_reaped_by_watchdog", "type": "", "message": "the turn made no progress in time"}
    assert error_text(error) == "error\ntimeout_reaped_by_watchdog: the turn made no progress in time"


def test_why_says_of_an_ended_task_when_it_ended_and_not_when_it_might(
    command: Command, stock: Stock, store: str
) -> None:
    ended = command("task", "show", stock.failed, "--store", store, "--json").document["ended_at"]
    text = command("why", stock.failed, "--store", store).out
    assert f"ended at  {ended}" in text
    assert "ends by" not in text
    assert "at the latest" not in text


def test_a_refused_action_hints_at_the_right_one(command: Command, store: str) -> None:
    task = command("submit", "clerk", '{"id": "1"}', "--store", store, "--json").document
    refused = command("task", "unblock", task["id"], "--store", store, "--json")
    assert (refused.code, refused.error["code"]) == (4, "wrong_status")
    assert refused.error["hint"] == f"endwell why {task['id']}: what can be done now"
