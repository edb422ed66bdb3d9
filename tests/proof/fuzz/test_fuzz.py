"""200,000 inputs for all decoders: each is accepted or refused; none crashes or hangs a decoder.

Half of the seeds are fixed; the others follow from the source, so that new inputs are tried whenever it
changes. `python -m tests.proof.fuzz` runs as many as you like.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tally
from tests.proof.fuzz.campaign import (
    Finding,
    Target,
    kept_inputs,
    no_hangs,
    run,
    shortest_findings,
    shortfalls,
    try_input,
)
from tests.proof.fuzz.mutate import one_of
from tests.proof.fuzz.targets import all_targets
from tests.seeds import seeds

INPUTS = 200_000
RUNS = 4


@pytest.mark.parametrize("number", range(RUNS))
def test_every_input_is_accepted_or_refused(number: int, tmp_path: Path) -> None:
    seed, count = seeds(RUNS)[number], INPUTS // RUNS
    targets = all_targets(tmp_path)
    with no_hangs():
        outcome = run(targets, count, seed)

    found = "\n".join(map(str, shortest_findings(outcome.findings)[:5]))
    assert not outcome.findings, f"python -m tests.proof.fuzz --inputs {count} --seed {seed} --keep\n{found}"
    assert shortfalls(outcome, targets) == []
    assert outcome.inputs >= count
    tally.count("fuzzed inputs", outcome.inputs)
    tally.count("of these accepted", sum(one.accepted for one in outcome.tallies.values()))


def test_kept_inputs_are_accepted_or_refused(tmp_path: Path) -> None:
    targets = {target.name: target for target in all_targets(tmp_path)}
    findings: list[Finding] = []
    kept = kept_inputs()
    with no_hangs():
        for name, data in kept:
            try_input(targets[name], data, findings)

    assert len(kept) >= 8
    assert not findings, "\n".join(map(str, findings))


def test_the_same_seed_gives_the_same_inputs_in_any_process_and_another_gives_others() -> None:
    once, again, other = (_trace_of(seed, strings) for seed, strings in ((5, "1"), (5, "2"), (6, "1")))

    assert once == again != other


def _trace_of(seed: int, strings: str) -> str:
    """Return the trace of all targets from a process with another string hash."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.fuzz", "--inputs", "400", "--seed", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": strings},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.rpartition("trace ")[2]


def test_a_decoder_that_raises_something_else_or_takes_everything_is_found() -> None:
    broken = Target(name="broken", share=1, valid=one_of((b"1",)), take=lambda data: 1 // len(data) > 0)
    lenient = Target(name="lenient", share=1, valid=one_of((b"1",)), take=lambda data: True)
    outcome = run([broken, lenient], 800, 1)

    assert {finding.target for finding in outcome.findings} == {"broken"}
    assert "ZeroDivisionError" in outcome.findings[0].problem
    assert [line.partition(":")[0] for line in shortfalls(outcome, [lenient])] == ["lenient"]


def test_a_decoder_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(data: bytes) -> bool:
        while True:
            pass

    monkeypatch.setattr("tests.proof.fuzz.campaign.SLOWEST_CPU_SECONDS", 0.05)
    findings: list[Finding] = []
    with no_hangs():
        try_input(Target(name="endless", share=1, valid=one_of((b"",)), take=endless), b"", findings)

    assert "Hang" in findings[0].problem
