"""The planted defect, and the process that runs its tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.proof.planted.planter import GREEN, RED

ROOT = Path(__file__).parents[3]
SECONDS = 1500.0
"""Longest run of the named tests; far more than they need."""


class Edit(NamedTuple):
    """A file of the product, a text that occurs in it exactly once, and its replacement."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A wrong change, and the tests that must fail with it; on SQLite alone unless `on_postgres`."""

    name: str
    edits: tuple[Edit, ...]
    caught_by: tuple[str, ...]
    on_postgres: bool = False


class Answer(NamedTuple):
    """How the tests ended, and what they printed."""

    code: int
    said: str

    @property
    def is_red(self) -> bool:
        """Whether tests ran and failed; an import that fails is not enough."""
        return self.code == RED

    @property
    def is_green(self) -> bool:
        return self.code == GREEN


class Planter:
    """The process that runs tests on copies. `postgres` is a server for tests that need one."""

    def __init__(self, postgres: str | None = None) -> None:
        named = {} if postgres is None else {"ENDWELL_TEST_POSTGRES": postgres}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.proof.planted.planter"],
            cwd=ROOT,
            env={**os.environ, **named},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, where: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, edits: tuple[Edit, ...], tests: list[str]) -> Answer:
        """Run these tests on a copy with these changes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"edits": edits, "tests": tests, "seconds": SECONDS}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return Answer(answer["code"], answer["said"])

    def plant(self, defect: Defect) -> Answer:
        """Run the tests that must catch the defect."""
        return self.run(defect.edits, words_for(defect))


def words_for(*defects: Defect) -> list[str]:
    """Return the arguments of pytest for these defects: each test once."""
    tests = list(dict.fromkeys(f"tests/{test}" for defect in defects for test in defect.caught_by))
    on_postgres = any(defect.on_postgres for defect in defects)
    return tests if on_postgres else [*tests, "-k", "not postgres"]
