"""Simulated installations: two hours of virtual time each, faults of every kind, every transaction judged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from endwell.testing.campaign import seeds
from endwell.testing.faults.registry import FAULTS
from endwell.testing.shrinking import Case, cases, keep, shrink, simulate, told

CORPUS = Path(__file__).with_name("corpus")
KEPT = cases(CORPUS)
SEEDS = 60
PARTS = 12
LEAST_FAULTS = 800
LEAST_KINDS = 25


@pytest.mark.parametrize("part", range(PARTS))
def test_everything_that_must_hold_holds_whatever_goes_wrong(part: int) -> None:
    """60 seeds in all, half of them from a hash of the source: 800 faults, at least 25 kinds in each part."""
    counted: Counter[str] = Counter()
    for seed in seeds(SEEDS)[part::PARTS]:
        result = simulate(seed)
        if not result.is_good:
            small = shrink(result)
            pytest.fail(f"{told(small)}\nkept as {keep(small, CORPUS)}")
        assert result.tasks >= 40
        counted += result.faults
    assert counted.total() >= LEAST_FAULTS / PARTS
    assert len(counted) >= LEAST_KINDS


@pytest.mark.parametrize("name", KEPT)
def test_a_history_that_once_went_wrong_does_not_go_wrong_again(name: str) -> None:
    case: Case = KEPT[name]
    result = simulate(case.seed, case.plan)
    assert result.is_good, told(result)


def test_one_seed_is_one_trace() -> None:
    run = partial(simulate, 11, hours=0.5, orders=15)
    first, second = run(), run()
    assert first.digest == second.digest
    assert first.events == second.events > 50
    assert simulate(12, hours=0.5, orders=15).digest != first.digest


def test_one_seed_is_one_trace_in_every_process() -> None:
    code = "from endwell.testing.shrinking import simulate;print(simulate(13, hours=0.5, orders=15).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_half_of_the_seeds_follow_from_the_source(tmp_path: Path) -> None:
    (tmp_path / "door.py").write_text("one")
    before = seeds(10, tmp_path)
    (tmp_path / "door.py").write_text("two")
    after = seeds(10, tmp_path)
    assert before[:5] == after[:5] == [1, 2, 3, 4, 5]
    assert not set(before[5:]) & set(after[5:])


def test_without_faults_every_order_succeeds_that_can() -> None:
    result = simulate(5, faults=[])
    assert result.is_good, told(result)
    assert not result.faults
    assert result.ended["cancelled"] == result.ended["timeout"] == 0


def test_there_are_more_than_40_kinds_of_faults_and_each_says_what_goes_wrong() -> None:
    assert len(FAULTS) >= 40
    assert all(fault.says.strip().endswith(".") for fault in FAULTS.values())
