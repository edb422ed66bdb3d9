"""`endwell effect`: effects outside, and a person's verdict on unknown ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from endwell import Endwell
from endwell.model import commands as c
from endwell.model.moments import SECOND
from tests.cli.conftest import Command, _app


@pytest.fixture
def unknown(store: str, tmp_path: Path) -> str:
    """A task that failed halfway through the effect `pay:42`."""
    return asyncio.run(_failed_halfway(_app(tmp_path)))


async def _failed_halfway(app: Endwell) -> str:
    async with app.connect() as node:
        handle = await node.client.submit("clerk", {"id": "42"})
        about: dict[str, Any] = {"namespace": app.namespace, "actor": "test"}
        await node.store.commit_one(
            c.OpenSession(
                command_id="open",
                session_id="s",
                kind="worker",
                name="w",
                host="h",
                pid=1,
                agents=("clerk",),
                concurrency=1,
                lease=60 * SECOND,
                **about,
            )
        )
        claim = c.ClaimNext(command_id="claim", session_id="s", agents=("clerk",), limit=1, **about)
        (offer,) = (await node.store.commit_one(claim)).taken
        held: dict[str, Any] = {"task_id": handle.id, "attempt_id": offer.task.attempt_id or "", **about}
        step = "1:()pay#1"
        await node.store.commit_one(
            c.IntendEffect(
                command_id="intend", step=step, key="pay:42", args_hash="a", timeout=SECOND, **held
            )
        )
        await node.store.commit_one(
            c.DoubtEffect(command_id="doubt", key="pay:42", reason="timed out", **held)
        )
        await node.store.commit_one(
            c.Block(
                command_id="block",
                reason="effect_unknown",
                effect_key="pay:42",
                owner="ada",
                task_id=handle.id,
                **about,
            )
        )
        return handle.id


def test_an_unknown_effect_is_listed_and_settled_by_a_person(
    command: Command, unknown: str, store: str
) -> None:
    (item,) = command("effect", "list", "--status", "unknown", "--store", store, "--json").document["items"]
    assert (item["key"], item["task_id"], item["step"]) == ("pay:42", unknown, "1:()pay#1")
    assert "pay:42" in command("effect", "list", "--task", unknown, "--store", store).out
    assert "doubt       timed out" in command("effect", "show", "pay:42", "--store", store).out
    typed = [line.strip() for line in command("why", unknown, "--store", store).out.splitlines()]
    for verdict in ("done", "not-done", "abandon"):
        assert f"endwell effect settle pay:42 {verdict} --store {store}" in typed, "each can be pasted"
    done = command(
        *("effect", "settle", "pay:42", "done", "--as", "ada", "--result", '{"receipt": 7}'),
        *("--store", store, "--json"),
    )
    assert (done.code, done.document["status"], done.document["settled_by"]) == (0, "done", "ada")
    shown = command("effect", "show", "pay:42", "--store", store, "--json").document
    assert shown["result"] == {"receipt": 7}
    assert '"receipt": 7' in command("effect", "show", "pay:42", "--store", store).out
    task = command("task", "show", unknown, "--store", store, "--json").document
    assert task["status"] == "queued", "the task continues"
    again = command("effect", "settle", "pay:42", "not-done", "--store", store, "--json")
    assert (again.code, again.error["code"]) == (4, "effect_settled")


@pytest.mark.parametrize(("word", "status"), [("not-done", "not_done"), ("abandon", "abandoned")])
def test_an_unknown_effect_is_settled_as_not_done_or_abandoned(
    command: Command, unknown: str, store: str, word: str, status: str
) -> None:
    forced = ["--force"] if word == "not-done" else []
    done = command("effect", "settle", "pay:42", word, *forced, "--store", store, "--json")
    assert (done.code, done.document["status"]) == (0, status)


def test_an_unknown_effect_key_exits_with_3(command: Command, store: str) -> None:
    for words in (("show", "nothing"), ("settle", "nothing", "done")):
        answer = command("effect", *words, "--store", store, "--json")
        assert (answer.code, answer.error["code"]) == (3, "no_such_effect")
    assert command("effect", "settle", "x", "perhaps", "--store", store).code == 2
    assert command("effect", "list", "--store", store).out.strip() == "no effects"


def test_not_done_is_refused_while_a_call_may_be_in_progress(
    command: Command, unknown: str, store: str
) -> None:
    refused = command("effect", "settle", "pay:42", "not-done", "--store", store, "--json")
    shown = command("effect", "show", "pay:42", "--store", store, "--json")
    assert (refused.code, refused.error["code"]) == (4, "effect_in_flight")
    assert shown.document["status"] == "unknown"
