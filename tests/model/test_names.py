"""Names outside the contract are refused with a clear error; the others pass unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endwell.errors import BadInput
from endwell.model import names
from endwell.model.content import printable_text

NAMES = [names.agent_name, names.tool_name, names.channel_name]
KEYS = [names.agent_key, names.idempotency_key, names.namespace_name]

Validator = Callable[[Any], str]


@pytest.mark.parametrize("validator", NAMES)
@pytest.mark.parametrize("name", ["a", "0", "coder", "code-review_2", "a" * 64])
def test_a_name_of_the_contract_passes_unchanged(validator: Validator, name: str) -> None:
    assert validator(name) == name


@pytest.mark.parametrize("validator", NAMES)
@pytest.mark.parametrize(
    "name", ["", "A", "-a", "_a", "a" * 65, "a b", "a\n", "ä", "a/b", "٣", None, 5, b"a"]
)
def test_any_other_name_is_refused(validator: Validator, name: Any) -> None:
    with pytest.raises(BadInput) as refused:
        validator(name)
    assert refused.value.code == "bad_name"
    assert refused.value.hint is not None
    assert "1 to 64 of a-z, 0-9, _ and -" in refused.value.hint


@pytest.mark.parametrize("validator", KEYS)
@pytest.mark.parametrize("key", ["A", "order-42", "pay:42@eu.example_1", "." * 128])
def test_a_key_of_the_contract_passes_unchanged(validator: Validator, key: str) -> None:
    assert validator(key) == key


@pytest.mark.parametrize("validator", KEYS)
@pytest.mark.parametrize("key", ["", "a" * 129, "a b", "a\n", "a/b", "é", "a\0", "\ud800", None])
def test_any_other_key_is_refused(validator: Validator, key: Any) -> None:
    with pytest.raises(BadInput) as refused:
        validator(key)
    assert refused.value.code == "bad_name"


def test_a_reference_names_an_agent_and_perhaps_a_key() -> None:
    assert names.agent_reference("coder") == ("coder", None)
    assert names.agent_reference("coder/issue-42") == ("coder", "issue-42")


@pytest.mark.parametrize("text", ["", "/", "coder/", "/key", "coder/a/b", "Coder/a", "coder/a\n", None])
def test_a_reference_with_a_bad_half_is_refused(text: Any) -> None:
    with pytest.raises(BadInput) as refused:
        names.agent_reference(text)
    assert refused.value.code == "bad_name"


def test_a_refusal_shows_the_name_escaped_and_cut() -> None:
    with pytest.raises(BadInput) as refused:
        names.agent_name("\x1b[31m" + "x" * 10_000)
    assert "\\x1b[31m" in refused.value.message
    assert "characters cut" in refused.value.message
    assert len(refused.value.message) < 150
    assert refused.value.field == "agent"


@settings(deadline=None)
@given(st.text())
def test_no_text_breaks_a_validator(text: str) -> None:
    try:
        agent, key = names.agent_reference(text)
    except BadInput as refused:
        message = refused.message
    else:
        message = ""
        assert text == (agent if key is None else f"{agent}/{key}")
    assert printable_text(message) == message


BAD_PEOPLE = (
    *("", " ", "ann\n", "\nann", "ann\tbob", "ann\0", "\x1b[31mann", "ann,bob", "ann, bob", ",", "a" * 201),
    *(
        "ann\u200b",
        "\u202eann",
        "ann\u00a0",
        "ann\ufe0f",
        "ann\u3164",
        "\u2800",
        "an\u034fn",
        "\ud800",
        "\ufeffann",
    ),
    *(7, None, ["ann"], b"ann"),
)


@pytest.mark.parametrize("text", BAD_PEOPLE, ids=repr)
def test_text_with_commas_control_characters_or_nothing_to_see_is_no_name_of_a_person(text: Any) -> None:
    with pytest.raises(BadInput) as refused:
        names.person_name(text)
    assert refused.value.code == "bad_name"
    assert refused.value.message.isprintable()


@pytest.mark.parametrize("text", ["Ann", "Zoë Müller", "o'neill", "李雷", "DOMAIN\\ann", "ann@example.com"])
def test_name_of_a_person_is_kept_as_it_is(text: str) -> None:
    assert names.person_name(text) == text


def test_name_of_a_person_has_one_form() -> None:
    assert names.person_name("  Zoe\u0308   Mu\u0308ller ") == "Zoë Müller"


@pytest.mark.parametrize("other", ["ann", "ANN", "\uff21nn", "Ann ", "\u24b6nn"])
def test_spellings_of_one_name_are_the_same_person(other: str) -> None:
    assert names.same_person(other) == names.same_person("Ann")
    assert names.same_person(other) != names.same_person("Anna")
