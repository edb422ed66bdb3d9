"""Runs histories on one database; Hypothesis shrinks and shows a failure."""

from __future__ import annotations

import os

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

from tests.proof.histories.bench import Stores
from tests.proof.histories.machine import StoreHistories
from tests.store.world import Database

STEPS = 40


def run_histories(database: Database, count: int, seed: int) -> int:
    """Run histories; return how many ended well."""
    opened = Stores(database)

    class Histories(StoreHistories):
        stores = opened

    settings = hypothesis.settings(
        max_examples=count,
        phases=(Phase.generate,) if "ENDWELL_TEST_PATIENCE" in os.environ else tuple(Phase),
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    try:
        run_state_machine_as_test(hypothesis.seed(seed)(Histories), settings=settings)
    finally:
        opened.close()
    return Histories.finished
