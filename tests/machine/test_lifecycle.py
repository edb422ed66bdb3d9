"""docs/lifecycle.md is what the machine's tables say."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from endwell.machine import clocks
from endwell.machine.table import TABLE
from endwell.model import facts as f
from endwell.model import status as s
from tests.machine import lifecycle
from tests.machine.walk.invariants import ENDED_FOR

PAGE = Path(__file__).parents[2] / "docs" / "lifecycle.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == lifecycle.lifecycle_page(), "docs/lifecycle.md is out of date: run make docs"


def test_the_page_names_every_status_command_rule_and_fact() -> None:
    page = lifecycle.lifecycle_page()

    commands = [kind.__name__ for kind in TABLE]
    for name in (*s.ALL, *commands, *clocks.RULE_NAMES, *f.BY_TYPE):
        assert f"`{name}`" in page


def test_the_page_says_how_a_task_ends_for_each_reason() -> None:
    ends = lifecycle.lifecycle_page().split("## How turns and tasks end")[1].split("## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in ends.split("\n") if line[:1] == "|"]

    for reason in ("ends_by", "runaway_guard", "crash_limit"):
        (status,), is_letter = ENDED_FOR[reason]
        row = next(row for row in rows if f"`{reason}`" in row[0])
        assert row[3:] == [status, "yes" if is_letter else "no"]


def test_the_page_is_what_the_module_prints(capsys: pytest.CaptureFixture[str]) -> None:
    SourceFileLoader("__main__", str(lifecycle.__file__)).exec_module(ModuleType("__main__"))

    assert capsys.readouterr().out == PAGE.read_text()
