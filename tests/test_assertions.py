"""Every test checks something: by an assertion of its own, or by a helper that asserts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
PRODUCT = TESTS.parent / "src"
CHECKS = ("fail", "fnmatch_lines", "raises", "warns")
"""Calls that fail a test by themselves."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(source: str) -> Iterator[Function]:
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, Function))


def is_checking(function: Function) -> bool:
    """Whether it contains a check of its own."""
    nodes = list(ast.walk(function))
    calls = [ast.unparse(node.func).split(".")[-1] for node in nodes if isinstance(node, ast.Call)]
    return any(isinstance(node, ast.Assert | ast.Raise) for node in nodes) or bool({*calls} & {*CHECKS})


def names_used(function: Function, product: set[str]) -> set[str]:
    """Names that may be helpers of the tests: a method that the product has as well may be the product's."""
    nodes = list(ast.walk(function))
    methods = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return {node.id for node in nodes if isinstance(node, ast.Name)} | (methods - product)


def unchecked_tests(tests: list[str], product: list[str]) -> list[str]:
    """Name the tests that neither check anything nor use a helper that does."""
    known = {function.name for source in product for function in functions_of(source)}
    functions = [function for source in tests for function in functions_of(source)]
    used = {function: names_used(function, known) for function in functions}
    checking: set[str] = set()
    found = {function.name for function in functions if is_checking(function)}
    while found - checking:
        checking |= found
        found = {function.name for function, names in used.items() if names & checking}
    return [
        function.name
        for function, names in used.items()
        if function.name.startswith("test_") and not is_checking(function) and not names & checking
    ]


def _sources(room: Path) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(room.rglob("*.py"))]


def test_every_test_checks_something() -> None:
    assert unchecked_tests(_sources(TESTS), _sources(PRODUCT)) == []


def test_a_test_without_a_check_is_found() -> None:
    source = """
def check(value): assert value
def look(value): check(value)
def test_a(): check(1)
def test_b(world): world.look(1)
def test_c(world): world.run(1)
def test_d(): print(1)
"""
    assert unchecked_tests([source, "def run(value): assert value"], ["def run(value): ..."]) == [
        "test_c",
        "test_d",
    ]
