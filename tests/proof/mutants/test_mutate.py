"""Tests of the mutator: what it changes, and what it leaves alone because no test could notice."""

from __future__ import annotations

import pytest

from tests.proof.mutants.mutate import SOURCE, mutants_in
from tests.proof.mutants.run import reviewed

KINDS = {
    "x = a < b": {"x = (a <= b)"},
    "x = a is None": {"x = (a is not None)"},
    "x = a and b": {"x = (a or b)", "x = (b)", "x = (a)"},
    "x = not a": {"x = (a)"},
    "x = a if b else c": {"x = (a)", "x = (c)"},
    "x = a + b": {"x = (a - b)"},
    "x = a / b": {"x = (a * b)"},
    "x = True": {"x = False"},
    "x = 5": {"x = 6"},
    "f(a=b)": {"f(**{})", "pass"},
    "def f():\n    return a": {"def f():\n    return None"},
    "x += a": {"pass"},
    "raise a": {"pass"},
}
UNNOTICED = (
    '"""A docstring."""',
    "x: Literal[5]",
    "def f(x: Literal[5]) -> Literal[6]:\n    return None",
    "if TYPE_CHECKING:\n    x = 5",
    "class A(Struct, frozen=True):\n    pass",
    "@lru_cache(maxsize=5)\ndef f():\n    pass",
    "x = content.safe_repr(y, 60)",
)


@pytest.mark.parametrize("text", KINDS)
def test_a_mutant_changes_one_thing(text: str) -> None:
    assert {one.text for one in mutants_in("x.py", text)} == KINDS[text]


@pytest.mark.parametrize("text", UNNOTICED)
def test_changes_without_an_effect_are_not_made(text: str) -> None:
    assert mutants_in("x.py", text) == []


def test_a_mutant_is_known_by_the_text_of_its_line_wherever_that_stands() -> None:
    (here,) = mutants_in("x.py", "x = a < b")
    there = mutants_in("x.py", "y = 1\n\nx = a < b")[-1]
    inside = mutants_in("x.py", "def f():\n    x = a < b")[-1]

    assert here.key == there.key != inside.key
    assert here.name != there.name


def test_what_is_executed_at_import_is_told_from_what_is_inside_of_functions() -> None:
    found = mutants_in("x.py", "x = 5\ndef f(y=6):\n    return 7\nclass A:\n    z = 8\n")

    assert {one.old for one in found if one.function == "f"} == {"7", "return 7"}
    assert {one.old for one in found if not one.function} == {"5", "6", "8"}


def test_each_mutant_that_is_held_to_be_equivalent_says_why_and_names_its_file() -> None:
    for key, reason in reviewed().items():
        assert (SOURCE / key.split(" ")[0]).is_file(), key
        assert len(reason) > 10, key
