"""`python -m tests.proof.planted [word ...]`: plant the defects with these words in their names, or all."""

from __future__ import annotations

import sys
import time

from tests.proof.planted.defect import Defect, Planter
from tests.proof.planted.defects import DEFECTS
from tests.servers.postgres import postgres_for_tests


def main(wanted: list[str]) -> int:
    chosen = [defect for defect in DEFECTS if not wanted or any(word in defect.name for word in wanted)]
    server = postgres_for_tests() if any(defect.on_postgres for defect in chosen) else None
    missed = 0
    try:
        with Planter(None if server is None else server.url("postgres")) as planter:
            missed = sum(not _is_caught(planter, defect) for defect in chosen)
    finally:
        if server is not None:
            server.stop()
    sys.stdout.write(f"{len(chosen) - missed} of {len(chosen)} caught\n")
    return 1 if missed else 0


def _is_caught(planter: Planter, defect: Defect) -> bool:
    began = time.monotonic()
    answer = planter.plant(defect)
    verdict = "caught" if answer.is_red else f"NOT CAUGHT (exit {answer.code})"
    sys.stdout.write(f"{verdict:<10} {time.monotonic() - began:5.1f} s  {defect.name}\n")
    if not answer.is_red:
        sys.stdout.write(answer.said[-1500:] + "\n")
    sys.stdout.flush()
    return answer.is_red


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
