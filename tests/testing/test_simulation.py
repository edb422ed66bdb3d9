"""Simulated installations: two hours of virtual time each, faults of every kind, every transaction judged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from endwell.testing import installation, workload
from endwell.testing.campaign import choose_seeds
from endwell.testing.faults.registry import FAULTS
from endwell.testing.oracle.judging import Violation
from endwell.testing.shrinking import describe_failure, shrink, simulate
from tests.patience import PATIENCE_SECONDS
from tests.proof.kept_histories import keep_history, kept_histories

KEPT = kept_histories()
SEEDS = 60
PARTS = 12
LEAST_FAULTS = 800
LEAST_KINDS = 25
NATIVE: dict[str, Any] = {"queue": "native", "relay": False}
STREAMED: dict[str, Any] = {"queue": "redis", "relay": True}


@pytest.mark.parametrize("part", range(PARTS))
def test_every_invariant_holds_under_all_faults(part: int) -> None:
    """60 seeds in all, half of them from a hash of the source: 800 faults, at least 25 kinds in each part."""
    counted: Counter[str] = Counter()
    for seed in choose_seeds(SEEDS)[part::PARTS]:
        result = simulate(seed)
        if not result.is_good:
            small = shrink(result)
            pytest.fail(f"{describe_failure(small)}\nkept as {keep_history(small)}")
        assert result.tasks >= 40
        counted += result.faults
    assert counted.total() >= LEAST_FAULTS / PARTS
    assert len(counted) >= LEAST_KINDS


@pytest.mark.parametrize("name", KEPT)
def test_a_history_that_once_failed_does_not_fail_again(name: str) -> None:
    result = KEPT[name].run()
    assert result.is_good, describe_failure(result)


def test_a_kept_history_does_not_change_when_seeds_choose_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = simulate(11, 10, hours=0.5, orders=15, **STREAMED)
    keep_history(replace(first, violations=(Violation("pretended", "It holds.", "it did not"),)), tmp_path)
    monkeypatch.setattr(installation, "BEATS", (4.0,))
    monkeypatch.setattr(installation, "CREW", {})
    monkeypatch.setattr(installation, "CALM_SHARE", 0.5)
    monkeypatch.setattr(workload, "choose_orders", lambda *_, **__: ())
    assert simulate(11, first.plan, hours=0.5, orders=15, **STREAMED).digest != first.digest

    again = kept_histories(tmp_path)["pretended-11"].run()
    assert again.digest == first.digest
    assert again.faults == first.faults


def test_a_kept_history_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"seed": 6, "why": "nobody_spins", "faults": []}')
    with pytest.raises(msgspec.ValidationError, match="version"):
        kept_histories(tmp_path)


@pytest.mark.parametrize("has", [NATIVE, STREAMED], ids=["native", "streamed"])
def test_the_same_seed_gives_the_same_trace(has: dict[str, Any]) -> None:
    run = partial(simulate, 11, hours=0.5, orders=15, **has)
    first, second = run(), run()
    assert first.digest == second.digest
    assert first.events == second.events > 50
    assert simulate(12, hours=0.5, orders=15, **has).digest != first.digest


def test_the_same_seed_gives_the_same_trace_in_every_process() -> None:
    run = "simulate(13, hours=0.5, orders=15, queue='redis', relay=True)"
    code = f"from endwell.testing.shrinking import simulate; print({run}.digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_SECONDS,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_half_of_the_seeds_follow_from_the_source(tmp_path: Path) -> None:
    (tmp_path / "door.py").write_text("one")
    before = choose_seeds(10, tmp_path)
    (tmp_path / "door.py").write_text("two")
    after = choose_seeds(10, tmp_path)
    assert before[:5] == after[:5] == [1, 2, 3, 4, 5]
    assert not set(before[5:]) & set(after[5:])


def test_a_fifth_of_the_seeds_have_streams_and_half_of_them_a_relay() -> None:
    found = [installation.parts_for(seed) for seed in range(1, 301)]
    assert 45 <= sum(each.queue == "redis" for each in found) <= 75
    assert 120 <= sum(each.relay for each in found) <= 180


@pytest.mark.parametrize("has", [NATIVE, STREAMED], ids=["native", "streamed"])
def test_without_faults_no_task_is_cancelled_or_times_out(has: dict[str, Any]) -> None:
    result = simulate(8, faults=[], **has)  # in this history people decide before approvals expire
    assert result.is_good, describe_failure(result)
    assert not result.faults
    assert result.ended["cancelled"] == result.ended["timeout"] == 0


def test_there_are_more_than_40_kinds_of_faults_and_each_says_what_goes_wrong() -> None:
    assert len(FAULTS) >= 40
    assert all(fault.says.strip().endswith(".") for fault in FAULTS.values())
