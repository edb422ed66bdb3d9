"""Unreadable entries: an operator finds them beside the dead letters, with the reason."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Command, Stock
from tests.cli.streams import Server, server

__all__ = ["server"]

ORDER = '{"id": "7", "items": 2}'


def test_an_unreadable_entry_is_listed_and_shown_with_its_reason_beside_the_dead_letters(
    command: Command, stock: Stock, store: str, server: Server
) -> None:
    place = server.unreadable(tool_name="clerk", payload=ORDER, turn="t.t1", epoch="1")
    page = command("dlq", "list", "--store", store, "--json").document
    assert [item["task_id"] for item in page["items"]] == [stock.failed]
    ((entry),) = page["entries"]
    assert (entry["id"], entry["reason"], entry["error"]) == (place, "missing_fields", "missing: task_id")
    assert (entry["stream"], entry["message_id"]) == ("stream:task", "7-1")
    text = command("dlq", "list", "--store", store).out
    assert stock.failed in text
    assert "unreadable entries" in text
    assert "missing: task_id" in text
    whole = command("dlq", "show", place, "--store", store, "--json").document
    assert (whole["payload"], whole["status"]) == (ORDER, "unreadable")
    assert "missing: task_id" in command("dlq", "show", place, "--store", store).out


@pytest.mark.covers("S4.46")
def test_a_repaired_entry_becomes_one_task_however_often_it_is_replayed(
    command: Command, store: str, server: Server
) -> None:
    place = server.unreadable(payload=ORDER, turn="t.t1", epoch="1")
    unsaid = command("dlq", "replay", place, "--store", store, "--json")
    assert (unsaid.code, unsaid.error["field"]) == (4, "agent")
    words = ("--agent", "clerk", "--set", "items=5", "--store", store)
    entry = server.unreadable_at(place)
    new = command("dlq", "replay", place, *words, "--json").document
    task = command("task", "show", new["id"], "--store", store, "--json").document
    assert (task["agent"], task["payload"]) == ("clerk", {"id": "7", "items": 5})
    assert command("dlq", "list", "--store", store, "--json").document["entries"] == []
    assert command("dlq", "replay", place, *words).code == 3

    server.client.delete(server.names.dlq)
    server.client.xadd(server.names.dlq, entry, id=place)  # as if the first had died before it was gone
    assert command("dlq", "replay", place, *words, "--json").document["id"] == new["id"]
    assert len(command("task", "list", "--store", store, "--json").document["items"]) == 1


def test_all_entries_of_one_fingerprint_are_replayed_at_once(
    command: Command, store: str, server: Server
) -> None:
    for number in range(3):
        payload = f'{{"id": "{number}"}}'
        server.unreadable(tool_name="clerk", payload=payload, turn="t.t1", epoch="1")
    server.unreadable(tool_name="clerk", payload=ORDER, task_id="t", turn="t.t1", epoch="one")
    entries = command("dlq", "list", "--store", store, "--json").document["entries"]
    first = entries[-1]["fingerprint"]
    assert [entry["fingerprint"] == first for entry in entries] == [False, True, True, True]
    words = ("replay", "--fingerprint", first, "--store", store, "--json")
    assert command("dlq", *words).code == 2  # it asks first
    done = command("dlq", *words, "--yes").document
    assert len(done["items"]) == 3
    assert len(command("dlq", "list", "--store", store, "--json").document["entries"]) == 1


def test_an_entry_whose_payload_was_not_kept_needs_another(
    command: Command, store: str, server: Server
) -> None:
    place = server.unreadable(tool_name="clerk", payload=b"\xff\xfe", task_id="t", turn="t.t1", epoch="1")
    refused = command("dlq", "replay", place, "--store", store, "--json")
    assert (refused.code, refused.error["code"]) == (4, "payload_unknown")


def test_copies_of_known_tasks_and_worker_reports_can_only_be_abandoned(
    command: Command, stock: Stock, store: str, server: Server
) -> None:
    copy = server.unreadable(tool_name="clerk", payload=ORDER, task_id=stock.failed, turn="t.t1", epoch="-")
    word = server.unreadable(is_result=True, task_id="t", status="claimed")
    codes = {}
    for place in (copy, word):
        refused = command("dlq", "replay", place, "--store", store, "--json")
        assert refused.code == 4
        codes[place] = refused.error["code"]
    assert codes == {copy: "task_is_known", word: "entry_is_no_order"}
    for place in (copy, word):
        assert command("dlq", "abandon", place, "--store", store).code == 0
    assert command("dlq", "list", "--store", store, "--json").document["entries"] == []
    assert command("dlq", "abandon", copy, "--store", store).code == 3


def test_a_server_that_is_away_hides_its_entries_and_not_the_dead_letters(
    command: Command, stock: Stock, store: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENDWELL__REDIS__URL", "redis://127.0.0.1:1")
    page = command("dlq", "list", "--store", store, "--json")
    assert page.code == 0
    assert [item["task_id"] for item in page.document["items"]] == [stock.failed]
    assert "cannot be read" in page.document["entries_error"]
    assert command("dlq", "show", "1-1", "--store", store, "--json").code == 5
