"""Imports between the rooms of src/endwell point downwards only; type-only imports count as well.

A room is a folder or a single file directly under the package. The table below is read from the ground up:
a room may import itself and what lies below it, never a neighbour on its own floor.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "endwell"

FLOORS: tuple[set[str], ...] = (
    {"errors"},
    {"model"},
    {"policy"},
    {"machine"},
    {"store"},
    {"redis_client"},
    {"doorbell"},
    {"streams"},
    {"turn"},
    {"external"},
    {"worker", "pmo"},
    {"operate"},
    {"client", "backends"},
    {"registry"},
    {"app"},
    {"testing"},
    {"cli"},
    {"demo"},
    {"bench", "selftest"},
)
BESIDE_MODEL = {"errors", "model"}  # what the rooms beside model may import
FIRST_USER = {"settings": "policy", "runtime": "store"}  # the lowest room that may import each of them
STARTS: dict[str, set[str]] = {"cli": {"bench", "demo", "selftest"}}  # whose commands are named in its list
FRONTS = {"__init__", "__main__"}  # these may import anything; only rooms above the app may import them
ROOT_FILES = {"errors", "settings", "redis_client", "app", "backends", "client", "registry"} | FRONTS
KNOWN = set().union(*FLOORS) | set(FIRST_USER) | FRONTS


def floor_of(room: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


def may_import(room: str, other: str) -> bool:
    if room == other or room in FRONTS:
        return True
    if room in FIRST_USER:
        return other in BESIDE_MODEL
    if other in FIRST_USER:
        return floor_of(room) >= floor_of(FIRST_USER[other])
    if other in FRONTS:
        return floor_of(room) > floor_of("app")
    return floor_of(other) < floor_of(room) or other in STARTS.get(room, set())


def imported_rooms(source: str, module: str) -> Iterator[tuple[int, str]]:
    """Each room of the package that a module's source imports, with the line it does so on."""
    for node in ast.walk(ast.parse(source)):
        for name in _imported_names(node, module):
            parts = name.split(".")
            if parts[0] == "endwell":
                yield getattr(node, "lineno", 0), _room(parts)


def _imported_names(node: ast.AST, module: str) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            return [f"{_origin(node, module)}.{alias.name}" for alias in node.names]
        case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _calls_import(node):
            return [name]
    return []


def _origin(node: ast.ImportFrom, module: str) -> str:
    """Where a from-import looks; `module` names the importing file, a package's with `.__init__`."""
    if not node.level:
        return node.module or ""
    parents = module.split(".")[: -node.level]
    return ".".join([*parents, *filter(None, [node.module])])


def _calls_import(call: ast.Call) -> bool:
    return ast.unparse(call.func).split(".")[-1] in ("import_module", "__import__")


def _room(parts: list[str]) -> str:
    """The room of a dotted name; a name that the package's front offers belongs to the front."""
    return parts[1] if len(parts) > 1 and parts[1] in KNOWN else "__init__"


def upward_imports(source: str, module: str) -> list[str]:
    room = module.split(".")[1]
    return [
        f"{module}:{line}: {room} may not import {other}"
        for line, other in imported_rooms(source, module)
        if not may_import(room, other)
    ]


def unknown_rooms(package: Path) -> list[str]:
    files = {path.stem for path in package.glob("*.py")} - ROOT_FILES
    folders = {path.name for path in package.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    return sorted(files | (folders - KNOWN))


def _modules() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        dotted = ".".join(["endwell", *path.relative_to(PACKAGE).with_suffix("").parts])
        yield dotted, path.read_text(encoding="utf-8")


def test_imports_point_downwards_only() -> None:
    modules = list(_modules())
    assert modules, "the check found nothing to look at"
    assert [problem for module, source in modules for problem in upward_imports(source, module)] == []


def test_there_are_no_rooms_beside_those_in_the_map() -> None:
    assert unknown_rooms(PACKAGE) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("endwell.model.task", "from endwell.machine.decide import decide"),
        ("endwell.model.task", "from endwell.runtime import clock"),
        ("endwell.model.task", "import endwell.settings"),
        ("endwell.policy.retry", "from ..machine import decide"),
        ("endwell.policy.__init__", "from ..machine import decide"),
        ("endwell.machine.decide", "from endwell import runtime"),
        (
            "endwell.machine.decide",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import endwell.store",
        ),
        ("endwell.runtime.clock", "from endwell.policy import retry"),
        ("endwell.runtime.clock", "from endwell.settings import Settings"),
        ("endwell.store.door", "def late():\n  from endwell.doorbell.local import Bell"),
        ("endwell.worker.worker", "import endwell.external.programs as programs\nimport endwell.pmo.service"),
        ("endwell.doorbell.local", "from endwell.streams import intake"),
        ("endwell.worker.session", "from endwell.pmo.dispatch import dispatch"),
        ("endwell.pmo.dispatch", "from endwell.worker.session import WorkerSession"),
        ("endwell.operate.why", "from endwell.client import Client"),
        ("endwell.operate.why", "import importlib\nimportlib.import_module('endwell.cli.main')"),
        ("endwell.client", "from endwell.app import Endwell"),
        ("endwell.store.door", "from endwell import Endwell"),
        ("endwell.app", "from endwell.testing import world"),
        ("endwell.testing.world", "from endwell.cli import main"),
        ("endwell.errors", "from endwell.model.task import Task"),
    ],
)
def test_an_import_that_points_upwards_is_found(module: str, source: str) -> None:
    assert len(upward_imports(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("endwell.__init__", "from endwell.app import Endwell\nfrom .cli import main"),
        ("endwell.__main__", "from endwell.cli.main import main"),
        ("endwell.model.task", "from . import status\nfrom endwell.errors import Refused\nimport json"),
        ("endwell.policy.retry", "from endwell.settings import RetrySettings"),
        ("endwell.store.door", "from endwell.runtime import clock\nfrom ..machine.decide import decide"),
        ("endwell.runtime.clock", "from endwell.model.moment import Moment"),
        ("endwell.worker.worker", "from endwell.streams import intake\nfrom endwell.turn import turns"),
        ("endwell.client", "from endwell.operate import why\nfrom endwell.worker.worker import Worker"),
        ("endwell.app", "from endwell.client import Client"),
        ("endwell.cli.main", "from endwell import __version__\nfrom endwell.demo import command"),
    ],
)
def test_imports_that_point_downwards_are_fine(module: str, source: str) -> None:
    assert upward_imports(source, module) == []


def test_a_room_that_is_not_in_the_map_is_found(tmp_path: Path) -> None:
    for name in ("errors.py", "helpers.py", "model/task.py", "common/things.py", "static/page.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert unknown_rooms(tmp_path) == ["common", "helpers"]
