"""`endwell verify`: its figures, and its failure when a promise breaks or too little was tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from endwell.testing.campaign import LEAST_KINDS, Figures
from tests.patience import PATIENCE_SECONDS

ENOUGH = {f"fault {number}": 20 for number in range(LEAST_KINDS)}
WITHOUT_PYTHON = "import sys; sys.executable = '/bin/false'; from endwell.__main__ import main; main()"


def test_verify_reports_its_histories(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "endwell", "verify", "--seeds", "1", "--jobs", "1", "--json"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, timeout=PATIENCE_SECONDS, check=False)

    document = json.loads(done.stdout)
    assert done.returncode == 0, document
    assert (document["ok"], document["histories"], document["failures"]) == (True, 1, [])
    assert sum(document["faults"].values()) >= 13
    assert not list(tmp_path.iterdir())


def test_a_crashed_process_fails_verify(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", WITHOUT_PYTHON, "verify", "--seeds", "2"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, timeout=PATIENCE_SECONDS, check=False)

    assert done.returncode == 1
    assert b"ended with code 1" in done.stdout


@pytest.mark.parametrize(
    ("figures", "is_good"),
    [
        (Figures(seeds=40, faults=ENOUGH), True),
        (Figures(seeds=41, faults=ENOUGH), False),
        (Figures(seeds=30, faults={"one kind": 500}), False),
        (Figures(seeds=40, faults=ENOUGH, failures=("seed 3 broke",)), False),
        (Figures(), False),
    ],
    ids=["enough", "too few faults", "too few kinds", "something broke", "nothing tried"],
)
def test_figures_are_good_only_if_enough_was_tested_and_every_promise_held(
    figures: Figures, is_good: bool
) -> None:
    assert figures.is_good == is_good


def test_figures_of_several_processes_add_up() -> None:
    one = Figures(seeds=1, tasks=2, events=3, commits=4, judged=5, faults={"a": 1}, ended={"failed": 1})
    two = Figures(seeds=1, faults={"a": 1, "b": 2}, failures=("seed 3 broke",))

    both = one + two
    assert (both.seeds, both.faults, both.fault_count, both.failures) == (
        2,
        {"a": 2, "b": 2},
        4,
        ("seed 3 broke",),
    )
    assert "seed 3 broke" in both.to_text()
