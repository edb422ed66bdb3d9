"""Bad input at the command line: each a clear error with a stable code, and nothing stored."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Command

GOOD = '{"id": "1"}'


@pytest.mark.parametrize(
    ("words", "code", "field"),
    [
        (("clerk", "{id: 1}"), "bad_json", "payload"),
        (("clerk", '{"id": "1", "id": "2"}'), "duplicate_key", "payload"),
        (("clerk", '{"id": "1", "items": NaN}'), "not_finite_number", "payload.items"),
        (("clerk", '{"id": "1", "items": -Infinity}'), "not_finite_number", "payload.items"),
        (("clerk", '{"id": "1", "items": 123456789012345678901}'), "integer_too_large", "payload.items"),
        (("clerk", '{"id": "\\u0000"}'), "bad_text", "payload.id"),
        (("clerk", '{"id": "\\ud800"}'), "bad_text", "payload.id"),
        (("clerk", "[" * 65 + "]" * 65), "too_deep", "payload"),
        (("clerk", '"' + "x" * 100_000 * 11 + '"'), "payload_too_large", "payload"),
        (("clerk", '{"id": 1}'), "bad_payload", "payload.id"),
        (("clerk", '{"items": 1}'), "bad_payload", "payload.id"),
        (("clerk", '{"id": "1", "items": "many"}'), "bad_payload", "payload.items"),
        (("missing", GOOD), "unknown_agent", "agent"),
        (("Clerk", GOOD), "bad_name", "agent"),
        (("clerk/a b", GOOD), "bad_name", "agent_key"),
        (("clerk", GOOD, "--key", "a b"), "bad_name", "idempotency_key"),
        (("clerk", GOOD, "--channel", "A"), "bad_name", "channel"),
        (("clerk", GOOD, "--namespace", "a/b"), "bad_name", "namespace"),
        (("clerk", GOOD, "--delay", "-1"), "bad_delay", "delay"),
        (("clerk", GOOD, "--delay", "nan"), "bad_delay", "delay"),
        (("clerk", GOOD, "--deadline", "0"), "bad_deadline", "deadline"),
        (("clerk", GOOD, "--deadline", "99999d"), "bad_deadline", "deadline"),
        (("clerk", GOOD, "--priority", "10"), "bad_priority", "priority"),
    ],
)
def test_a_bad_submission_is_refused_with_its_field(
    command: Command, store: str, words: tuple[str, ...], code: str, field: str
) -> None:
    answer = command("submit", *words, "--store", store, "--json")
    assert (answer.code, answer.error["code"]) == (4, code)
    assert (answer.error["field"] or "").startswith(field)
    assert command("task", "list", "--store", store, "--json").document["items"] == []


def test_the_same_key_with_another_body_is_a_conflict(command: Command, store: str) -> None:
    first = command("submit", "clerk", GOOD, "--key", "k", "--store", store, "--json").document
    answer = command("submit", "clerk", '{"id": "2"}', "--key", "k", "--store", store, "--json")
    assert (answer.code, answer.error["code"]) == (4, "idempotency_conflict")
    assert answer.error["task_id"] == first["id"]
    assert len(command("task", "list", "--store", store, "--json").document["items"]) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("submit",),
        ("submit", "clerk", GOOD, "--priority", "high"),
        ("submit", "clerk", GOOD, "--delay", "soon"),
        ("submit", "clerk", "@missing.json"),
        ("submit-many", "clerk", "orders.jsonl"),
        ("submit", "clerk", GOOD, "--nonsense"),
        ("nonsense",),
        ("task",),
        ("task", "list", "--status", "asleep"),
        ("task", "list", "--limit", "0"),
        ("task", "list", "--store", "mysql://x"),
        ("task", "list", "--store", "sqlite:///"),
        ("dlq", "replay"),
        ("dlq", "replay", "x", "--all"),
        ("worker", "--concurrency", "0"),
        ("worker", "--app", "app"),
    ],
)
def test_wrong_usage_exits_with_2_in_the_same_shape(command: Command, words: tuple[str, ...]) -> None:
    answer = command(*words, "--json")
    assert answer.code == 2
    assert answer.error["message"]
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    "words",
    [("task", "show"), ("task", "history"), ("task", "cancel"), ("task", "retry"), ("why",), ("dlq", "show")],
)
def test_an_unknown_id_exits_with_3(command: Command, store: str, words: tuple[str, ...]) -> None:
    answer = command(*words, "nothing", "--store", store, "--json")
    assert answer.code == 3
    assert answer.error["code"] in ("no_such_task", "no_such_dead_letter")


@pytest.mark.parametrize("words", [("dlq", "replay"), ("dlq", "abandon")])
def test_a_task_without_a_dead_letter_cannot_be_abandoned(
    command: Command, store: str, words: tuple[str, ...]
) -> None:
    task = command("submit", "clerk", GOOD, "--store", store, "--json").document
    answer = command(*words, task["id"], "--store", store, "--json")
    assert (answer.code, answer.error["code"]) == (3, "no_such_dead_letter")
