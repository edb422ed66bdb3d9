"""The bare loop alone: the most that SQLite and Python can do at full durability."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from endwell.bench.bare_sqlite import measure
from endwell.runtime.clock import SystemClock


def main() -> None:
    """Measure once in the temporary directory and print one line per figure."""
    with tempfile.TemporaryDirectory(prefix="endwell-bare-") as directory:
        found = measure(Path(directory) / "bare.db", SystemClock().monotonic, one_by_one=3_000, bulk=100_000)
    for name, (rate, count) in found.items():
        sys.stdout.write(f"{name:<20} {rate:>12,.0f} /s   n={count}\n")


if __name__ == "__main__":
    main()
