"""`endwell doctor` on an installation whose turns travel over Redis Streams."""

from __future__ import annotations

from typing import Any

import pytest

from endwell.operate.doctor import streams
from tests.cli.conftest import Command
from tests.cli.streams import Server, server
from tests.servers.small import ValkeyServer

__all__ = ["server"]

OF_STREAMS = ("queue_", "entries_", "stream_grows", "dead_letters_pile_up")


def found(command: Command, store: str) -> dict[str, dict[str, Any]]:
    """The findings about streams by code; each has a remedy."""
    answer = command("doctor", "--store", store, "--json").document
    findings = {each["code"]: each for each in answer["findings"] if each["code"].startswith(OF_STREAMS)}
    assert all(each["remedy"] for each in findings.values())
    return findings


def test_streams_in_order_are_no_finding(command: Command, store: str, server: Server) -> None:
    assert found(command, store) == {}
    assert "streams" in command("doctor", "--store", store).out


def test_streams_that_are_longer_than_needed_are_found(
    command: Command, store: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SPARE_ENTRIES", 2)
    monkeypatch.setattr(streams, "MANY_LETTERS", 1)
    for _ in range(3):
        server.client.xadd(server.names.task, {"a": "b"})
        server.unreadable(task_id="t")
    (grows, many, unreadable) = (
        found(command, store)[code] for code in ("stream_grows", "dead_letters_pile_up", "entries_unreadable")
    )
    assert grows["facts"] == {"stream": server.names.task, "entries": 3, "needed": 0}
    assert many["facts"]["entries"] == 3
    assert unreadable["facts"]["count"] == 3
    assert "endwell dlq list" in unreadable["remedy"]


def test_entries_that_were_pending_for_too_long_are_an_error(
    command: Command, store: str, server: Server
) -> None:
    client, task = server.client, server.names.task
    client.xgroup_create(task, "cg:workers", "0", mkstream=True)
    client.xadd(task, {"a": "b"})
    client.xreadgroup("cg:workers", "bert-1", {task: ">"})
    assert "entries_left_alone" not in found(command, store)
    (entry,) = client.xpending_range(task, "cg:workers", "-", "+", 1)
    client.xclaim(task, "cg:workers", "bert-1", 0, [entry["message_id"]], idle=3_600_000)
    left = found(command, store)["entries_left_alone"]
    assert left["severity"] == "error"
    assert "3600 s" in left["message"]


def test_a_server_that_may_lose_streams_is_found(
    command: Command, store: str, server: Server, own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENDWELL__REDIS__URL", own_valkey.url)
    other = Server(own_valkey.url)
    other.client.config_set("maxmemory-policy", "allkeys-lru")
    other.client.config_set("appendonly", "no")
    other.client.config_set("save", "")
    other.client.close()
    assert set(found(command, store)) == {"queue_may_evict", "queue_forgets"}


def test_an_unreachable_server_is_an_error_and_the_other_checks_run(
    command: Command, store: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENDWELL__REDIS__URL", "redis://:secret@127.0.0.1:1")
    answer = command("doctor", "--store", store, "--json")
    assert answer.code == 1
    assert "queue_unreachable" in found(command, store)
    assert "secret" not in answer.out
    names = [check["name"] for check in answer.document["checks"]]
    assert names[-1] == "for_people"
