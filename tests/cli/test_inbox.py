"""`endwell inbox`, `task unblock` and `task assign`: what a person sees and does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from endwell import Endwell
from endwell.machine import clocks
from endwell.model import commands as c
from endwell.operate import bounds
from tests.cli.conftest import Command, _app
from tests.cli.shell import APP


@pytest.fixture
def told(store: str, tmp_path: Path) -> str:
    """A task that is blocked for ada, with two messages in its inbox."""
    return asyncio.run(_blocked_with_messages(_app(tmp_path)))


async def _blocked_with_messages(app: Endwell) -> str:
    async with app.connect() as node:
        handle = await node.client.submit("listener")
        await node.client.signal(handle.id, "first", {"n": 1})
        await node.client.signal(handle.id, "second", {"n": 2})
        about: dict[str, Any] = {"command_id": "b", "namespace": app.namespace, "task_id": handle.id}
        await node.store.commit_one(c.Block(**about, reason="look at it", owner="ada"))
        return handle.id


def test_messages_are_listed_newest_first_page_by_page_and_shown_with_their_content(
    command: Command, told: str, store: str
) -> None:
    where = ("--store", store, "--json")
    first = command("inbox", "list", "--task", told, "--limit", "1", *where).document
    second = command("inbox", "list", "--task", told, "--cursor", first["next"], *where).document
    names = [page["items"][0]["payload"]["name"] for page in (first, second)]
    assert (names, second["next"]) == (["second", "first"], None)
    item = first["items"][0]
    assert (item["message_type"], item["status"], item["agent_id"]) == ("signal", "pending", "listener")
    whole = command("inbox", "show", item["inbox_id"], *where).document
    assert whole["content"] == {"n": 2}
    assert '"n": 2' in command("inbox", "show", item["inbox_id"], "--store", store).out
    assert told in command("inbox", "list", "--status", "pending", "--store", store).out
    assert "no messages" in command("inbox", "list", "--status", "skipped", "--store", store).out


def test_an_offered_turn_is_shown_without_content(command: Command, store: str, tmp_path: Path) -> None:
    message_id = asyncio.run(_offered(_app(tmp_path)))
    shown = command("inbox", "show", message_id, "--store", store).out
    assert "agent_turn_id" in shown
    assert "content" not in shown


async def _offered(app: Endwell) -> str:
    async with app.connect() as node:
        await node.client.submit("clerk", {"id": "1"})
        await node.store.commit_one(
            c.DispatchNext(command_id="d", namespace=app.namespace, actor="pmo", agent="clerk", limit=1)
        )
        (row,) = await node.store.inbox_page(app.namespace)
        return row.id


def test_an_unknown_message_and_a_bad_cursor_are_refused_by_name(command: Command, store: str) -> None:
    unknown = command("inbox", "show", "nothing", "--store", store, "--json")
    assert (unknown.code, unknown.error["code"]) == (3, "no_such_message")
    bad = command("inbox", "list", "--cursor", "x", "--store", store, "--json")
    assert (bad.code, bad.error["code"]) == (4, "bad_cursor")


def test_a_blocked_task_is_assigned_and_unblocked(command: Command, told: str, store: str) -> None:
    where = ("--store", store, "--json")
    assigned = command("task", "assign", told, "--to", "grace", *where).document
    assert (assigned["status"], assigned["owner"]) == ("blocked", "grace")
    assert "grace accepted to hold the task" in command("why", told, "--store", store).out
    moved = command("task", "unblock", told, *where).document
    assert (moved["status"], moved["reason"]) == ("queued", None)
    again = command("task", "unblock", told, *where)
    assert (again.code, again.error["code"]) == (4, "wrong_status")
    refused = command("task", "assign", told, "--to", " ", *where)
    assert (refused.code, refused.error["code"]) == (4, "bad_name")


def test_why_fits_on_one_screen_and_says_what_to_type(command: Command, told: str, store: str) -> None:
    said = command("why", told, "--store", store).out
    assert len(said.splitlines()) <= 24
    for words in (f"endwell task unblock {told}", f"endwell task assign {told} --to NAME", "person ada"):
        assert words in said
    command("task", "unblock", told, "--store", store)
    said = command("why", told, "--store", store).out
    assert "no live worker serves this agent" in said
    assert "endwell worker --agents listener" in said


def test_bounds_answers_no_when_a_task_could_live_for_ever(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(APP)
    endless = tuple(rule for rule in clocks.RULES if rule.name != "ends_by")
    monkeypatch.setattr(bounds, "RULES", endless)
    answer = command("bounds", "--app", "app:app", "--json")
    assert (answer.code, answer.document["ok"]) == (1, False)


def test_bounds_shows_the_sum_and_answers_yes(command: Command, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    answer = command("bounds", "--app", "app:app", "--json")
    assert (answer.code, answer.document["ok"]) == (0, True)
    for item in answer.document["items"]:
        assert item["ended_at_the_latest_seconds"] == sum(part["seconds"] for part in item["sum"])
    assert "until a PMO ticks" in command("bounds", "--app", "app:app").out
