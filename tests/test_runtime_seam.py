"""Only runtime/ touches time, randomness, ids, sleep, threads and processes.

Every other room takes them from there, so that a test can pass another clock and other dice.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "endwell"

MODULES = {
    "_thread",
    "concurrent.futures",
    "multiprocessing",
    "random",
    "sched",
    "secrets",
    "subprocess",
    "threading",
    "time",
    "uuid",
}
NAMES = {
    *(f"asyncio.{name}" for name in ("TaskGroup", "create_task", "ensure_future", "gather", "sleep")),
    *(f"asyncio.{name}" for name in ("create_subprocess_exec", "create_subprocess_shell", "to_thread")),
    *(f"datetime.datetime.{name}" for name in ("now", "today", "utcnow")),
    "datetime.date.today",
    *(f"os.{name}" for name in ("fork", "forkpty", "kill", "killpg", "popen", "system", "urandom")),
    *(f"os.{name}" for name in ("posix_spawn", "posix_spawnp")),
}
METHODS = {"call_at", "call_later", "run_in_executor"}  # of an event loop, by any name
LOOP_METHODS = {"create_task"}  # a word that others use too, so only on something called a loop or a group

# (file, what it touches): why it may
ALLOWED: dict[tuple[str, str], str] = {
    ("model/content.py", "uuid.UUID"): "recognises users' UUID values to write them as text; makes none",
}


def touched(source: str) -> list[tuple[int, str]]:
    """List what a source touches that belongs to runtime/, each with its line."""
    tree = ast.parse(source)
    aliases = dict(_aliases(tree))
    found = {
        hit for node in ast.walk(tree) for hit in [*_forbidden_imports(node), *_forbidden_use(node, aliases)]
    }
    return sorted(found)


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Resolve names bound by imports: `from datetime import datetime as dt` gives dt."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _forbidden_imports(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return
    for name in names:
        if name in NAMES or any(f"{name}.".startswith(f"{module}.") for module in MODULES):
            yield node.lineno, name


def _forbidden_use(node: ast.AST, aliases: dict[str, str]) -> Iterator[tuple[int, str]]:
    if not isinstance(node, ast.Attribute):
        return
    first, _, rest = ast.unparse(node).partition(".")
    name = f"{aliases.get(first, first)}.{rest}"
    if name in NAMES:
        yield node.lineno, name
    elif node.attr in METHODS or (node.attr in LOOP_METHODS and _is_loop(node.value)):
        yield node.lineno, node.attr


def _is_loop(owner: ast.expr) -> bool:
    return ast.unparse(owner).rstrip("()").endswith(("loop", "group", "tg", "runner"))


def _outside_runtime() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if place.parts[0] != "runtime":
            yield place.as_posix(), path.read_text(encoding="utf-8")


def test_only_runtime_touches_time_chance_threads_and_processes() -> None:
    sources = list(_outside_runtime())
    assert sources, "the check found nothing to look at"
    problems = [
        f"src/endwell/{place}:{line}: {name} belongs to runtime/"
        for place, source in sources
        for line, name in touched(source)
        if (place, name) not in ALLOWED
    ]
    assert problems == []


def test_every_exception_is_needed_and_has_a_reason() -> None:
    used = {(place, name) for place, source in _outside_runtime() for _, name in touched(source)}
    assert set(ALLOWED) <= used
    assert all(reason.strip() for reason in ALLOWED.values())


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import time", "time"),
        ("from time import monotonic", "time.monotonic"),
        ("import random as dice", "random"),
        ("def late():\n    import uuid", "uuid"),
        ("from secrets import token_hex", "secrets.token_hex"),
        ("import threading", "threading"),
        ("import multiprocessing.pool", "multiprocessing.pool"),
        ("import subprocess", "subprocess"),
        ("from concurrent.futures import ThreadPoolExecutor", "concurrent.futures.ThreadPoolExecutor"),
        ("from concurrent import futures", "concurrent.futures"),
        ("import datetime\nx = datetime.datetime.now()", "datetime.datetime.now"),
        ("from datetime import datetime as dt\nx = dt.utcnow()", "datetime.datetime.utcnow"),
        ("from datetime import date\nmake = date.today", "datetime.date.today"),
        ("import os\nos.fork()", "os.fork"),
        ("from os import kill", "os.kill"),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(1)", "asyncio.sleep"),
        ("import asyncio as aio\naio.create_task(x)", "asyncio.create_task"),
        ("from asyncio import to_thread as away", "asyncio.to_thread"),
        ("import asyncio\nasyncio.ensure_future(x)", "asyncio.ensure_future"),
        ("import asyncio\nasyncio.TaskGroup()", "asyncio.TaskGroup"),
        ("self._loop.run_in_executor(None, f)", "run_in_executor"),
        ("import asyncio\nasyncio.get_running_loop().create_task(x)", "create_task"),
        ("group.create_task(x)", "create_task"),
        ("loop.call_later(1, f)", "call_later"),
    ],
)
def test_touching_what_belongs_to_runtime_is_found(source: str, name: str) -> None:
    assert name in [found for _, found in touched(source)]


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import datetime, timedelta, UTC\nx = datetime(2024, 1, 1, tzinfo=UTC)",
        "from endwell.runtime import clock, time\nnow = clock.now()",
        "from . import random\nfrom .time import now",
        "import os\npath = os.environ['HOME']",
        "import asyncio\nlock = asyncio.Lock()",
        "store.create_task(payload)",
        "import timeit_of_ours",
    ],
)
def test_ordinary_code_passes(source: str) -> None:
    assert touched(source) == []
