"""`python -m tests.proof.mutants [--count 200] [--seed 1] [--share 1/4] [--of policy]`: do tests notice?

Exit 1 if fewer than 95 % of the mutants are killed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Final

import msgspec

from tests.proof.mutants.run import Verdict, all_mutants, reviewed, try_these

LEAST: Final = 0.95


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=0, help="number of mutants, chosen at random (all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", default="1/1", help="2/4: the second quarter of all")
    parser.add_argument("--of", default="", help="only of files whose name has this in it")
    parser.add_argument("--json", action="store_true", help="one line for each, and nothing else")
    parser.add_argument(
        "--without-walks", action="store_true", help="only the small tests: sooner, and stricter"
    )
    asked = parser.parse_args(arguments)
    mutants, equivalent = all_mutants()
    number, shares = map(int, asked.share.split("/"))
    chosen = [one for one in mutants if asked.of in one.file][number - 1 :: shares]
    whole = len(chosen)
    random.Random(asked.seed).shuffle(chosen)
    began = time.monotonic()
    verdicts: list[Verdict] = []

    def say(verdict: Verdict) -> None:
        verdicts.append(verdict)
        if asked.json:
            sys.stdout.write(msgspec.json.encode(verdict).decode() + "\n")
            return
        if not verdict.is_killed:
            sys.stdout.write(f"SURVIVED {verdict.name}\n{verdict.diff}\n")
        if len(verdicts) % 20 == 0:
            sys.stdout.write(f"{time.monotonic() - began:5.0f} s  {_killed_line(verdicts)}\n")
        sys.stdout.flush()

    try_these(chosen[: asked.count or whole], say, walks=not asked.without_walks)
    if asked.json:
        return 0
    sys.stdout.write(
        f"{_killed_line(verdicts)}, of {whole} there are; {len(equivalent)} more are equivalent\n"
    )
    for key in reviewed().keys() - {one.key for one in equivalent}:
        sys.stdout.write(f"listed as equivalent, but there is no such mutant any more: {key}\n")
    share = sum(one.is_killed for one in verdicts) / max(1, len(verdicts))
    return 0 if share >= LEAST else 1


def _killed_line(verdicts: list[Verdict]) -> str:
    killed = sum(one.is_killed for one in verdicts)
    return f"{killed} of {len(verdicts)} mutants killed ({killed / max(1, len(verdicts)):.1%})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
