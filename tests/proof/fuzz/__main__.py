"""`python -m tests.proof.fuzz --inputs 200000 --seed 5 [--only payload]`: exit 1 if anything was found."""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from pathlib import Path

from tests.proof.fuzz.campaign import CORPUS, no_hangs, report, run, shortest_findings, shortfalls
from tests.proof.fuzz.targets import all_targets


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="these targets only")
    parser.add_argument("--keep", action="store_true", help="put what was found into the corpus")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home, no_hangs():
        targets = [one for one in all_targets(Path(home)) if not asked.only or one.name in asked.only]
        outcome = run(targets, asked.inputs, asked.seed)
    say = sys.stdout.write
    for finding in shortest_findings(outcome.findings)[:40]:
        say(f"{finding}\n")
        if asked.keep:
            _keep(finding.target, finding.data)
    say("\n".join(report(outcome)) + "\n")
    short = shortfalls(outcome, targets)
    say("".join(f"too few: {line}\n" for line in short))
    return 1 if outcome.findings or short else 0


def _keep(target: str, data: bytes) -> None:
    (CORPUS / target).mkdir(parents=True, exist_ok=True)
    (CORPUS / target / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
