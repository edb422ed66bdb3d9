"""`python -m tests.proof.faults --kills 60 --zombies 20 --others 10 --seed 5`: exit 1 if a promise broke."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.proof.faults.campaign import Campaign, describe_outcome, share_out
from tests.servers.postgres import postgres_for_tests

STORES = ("sqlite", "postgresql")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.faults", description=__doc__)
    for kind, number in (("kills", 60), ("zombies", 20), ("others", 10)):
        parser.add_argument(f"--{kind}", type=int, default=number)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=STORES, action="append")
    asked = parser.parse_args(arguments)
    stores = asked.store or list(STORES)
    parts = share_out({"kills": asked.kills, "zombies": asked.zombies, "others": asked.others}, len(stores))
    return max(_run_on_store(store, wanted, asked.seed) for store, wanted in zip(stores, parts, strict=True))


def _run_on_store(store: str, wanted: dict[str, int], seed: int) -> int:
    server = postgres_for_tests() if store == "postgresql" else None
    try:
        with tempfile.TemporaryDirectory() as home:
            url = f"sqlite:///{home}/endwell.db" if server is None else server.create_database()
            return _run_and_print(Campaign(url, Path(home), wanted, seed), url)
    finally:
        if server is not None:
            server.stop()


def _run_and_print(campaign: Campaign, url: str) -> int:
    began = time.monotonic()
    outcome = asyncio.run(campaign.run())
    sys.stdout.write(describe_outcome(url, outcome, began) + "\n")
    for problem in outcome.broken:
        sys.stdout.write(f"DID NOT HOLD: {problem}\n")
    for kind, number in campaign.missing().items():
        sys.stdout.write(f"too few {kind}: {outcome.counted[kind]} of {number}\n")
    sys.stdout.flush()
    return 1 if outcome.broken or campaign.missing() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
