"""A run of the fuzzer: inputs from one seed, the tally of each decoder, and the findings."""

from __future__ import annotations

import hashlib
import math
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Final

from tests.proof.fuzz.mutate import Maker, make_noise, mutate_input

LEAST_SHARE: Final = 0.1
"""Least share of inputs that a target must accept, and refuse: otherwise it tests nothing."""
ENOUGH: Final = 300
"""Fewest inputs for which the share is checked."""
SLOWEST_CPU_SECONDS: Final = 5.0
"""Longest CPU time for one input; more is a hang."""
CORPUS: Final = Path(__file__).parent / "corpus"


@dataclass(frozen=True, kw_only=True)
class Target:
    """One decoder. `take` returns whether it accepted the input; any other exception is a finding.

    `share` is how many of a thousand inputs it gets. `refuses` is False for a decoder that accepts
    everything.
    """

    name: str
    share: float
    valid: Maker
    take: Callable[[bytes], bool]
    noise: Maker = make_noise
    refuses: bool = True


@dataclass(frozen=True)
class Finding:
    """An input that crashed or hung a decoder."""

    target: str
    data: bytes
    problem: str

    @property
    def kind(self) -> str:
        """Equal for inputs that fail at the same place in the same way."""
        lines = self.problem.strip().splitlines()
        places = [line for line in lines if line.startswith("  File ")]
        return f"{self.target} {places[-1:]} {lines[-1][:40]}"

    def __str__(self) -> str:
        shown = self.data if len(self.data) <= 400 else self.data[:400] + b"..."
        return f"{self.target}: {shown!r} ({len(self.data)} bytes)\n{self.problem}"


@dataclass
class Tally:
    """The inputs of one target, counted."""

    accepted: int = 0
    refused: int = 0
    mutations: int = 0

    @property
    def inputs(self) -> int:
        return self.accepted + self.refused


@dataclass
class Outcome:
    """The result of a run; the trace is the same for the same seed and count."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    trace: str = ""

    @property
    def inputs(self) -> int:
        return sum(tally.inputs for tally in self.tallies.values())


def inputs_for(target: Target, seed: int) -> Iterator[tuple[bytes, bool]]:
    """Yield inputs for ever: half of them mutations of valid ones, a quarter valid, a quarter noise."""
    dice = Random(f"{seed}:{target.name}")
    while True:
        yield mutate_input(target.valid(dice), dice, target.valid), True
        yield target.valid(dice), False
        yield mutate_input(target.valid(dice), dice, target.valid), True
        yield target.noise(dice), False


def run(targets: Sequence[Target], count: int, seed: int) -> Outcome:
    """Give each target its share of `count` inputs."""
    outcome = Outcome()
    digest = hashlib.sha256()
    whole = sum(target.share for target in targets)
    for target in targets:
        made = inputs_for(target, seed)
        tally = outcome.tallies[target.name] = Tally()
        for _ in range(max(20, math.ceil(count * target.share / whole))):
            data, is_mutation = next(made)
            tally.mutations += is_mutation
            verdict = try_input(target, data, outcome.findings)
            tally.accepted += verdict
            tally.refused += not verdict
            digest.update(b"%d %d " % (len(data), verdict) + data[:100])
    outcome.trace = digest.hexdigest()
    return outcome


def try_input(target: Target, data: bytes, findings: list[Finding]) -> bool:
    """Try one input; a finding is noted and counts as refused."""
    try:
        with _limited():
            return target.take(data)
    except Exception as error:
        problem = "".join(traceback.format_exception(error, limit=-6))
        findings.append(Finding(target.name, data, problem))
    return False


def shortest_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return the shortest input of each kind of finding."""
    found: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda one: len(one.data)):
        found.setdefault(finding.kind, finding)
    return list(found.values())


def shortfalls(outcome: Outcome, targets: Sequence[Target]) -> list[str]:
    """List the targets that accepted or refused too few inputs for the run to mean anything."""
    short = []
    for target in targets:
        tally = outcome.tallies[target.name]
        least = LEAST_SHARE * tally.inputs
        is_lopsided = tally.accepted < least or (target.refuses and tally.refused < least)
        if is_lopsided and tally.inputs >= ENOUGH:
            short.append(f"{target.name}: {tally.accepted} accepted, {tally.refused} refused")
    return short


def report(outcome: Outcome) -> list[str]:
    """Show a line for each target, and one for all."""
    lines = [_line(name, tally) for name, tally in outcome.tallies.items()]
    every = Tally(
        accepted=sum(tally.accepted for tally in outcome.tallies.values()),
        refused=sum(tally.refused for tally in outcome.tallies.values()),
        mutations=sum(tally.mutations for tally in outcome.tallies.values()),
    )
    return [*lines, _line("all", every), f"findings {len(outcome.findings)}, trace {outcome.trace[:16]}"]


def _line(name: str, tally: Tally) -> str:
    whole = max(1, tally.inputs)
    return (
        f"{name:<18}{tally.inputs:>9} inputs  {tally.accepted / whole:>4.0%} accepted  "
        f"{tally.refused / whole:>4.0%} refused  {tally.mutations / whole:>4.0%} mutations"
    )


def kept_inputs() -> list[tuple[str, bytes]]:
    """Return the inputs that were findings once, each with the name of its target."""
    return [(path.parent.name, path.read_bytes()) for path in sorted(CORPUS.glob("*/*")) if path.is_file()]


class Hang(Exception):
    """A decoder did not return."""


@contextmanager
def no_hangs() -> Iterator[None]:
    """Turn a decoder that uses up its CPU time into a finding."""

    def give_up(signum: int, frame: FrameType | None) -> None:
        raise Hang(f"more than {SLOWEST_CPU_SECONDS:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, give_up)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class _limited:  # noqa: N801 (used as a function; a generator would cost more than most inputs)
    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, SLOWEST_CPU_SECONDS)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
