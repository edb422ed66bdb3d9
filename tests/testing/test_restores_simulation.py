"""Simulated installations that are lost and restored from an earlier copy of their store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.campaign.restore import lose_and_restore


@pytest.mark.parametrize("seed", range(1, 9))
def test_effects_made_since_the_copy_are_not_repeated_by_the_restored_store(
    tmp_path: Path, seed: int
) -> None:
    result = lose_and_restore(seed, tmp_path)
    assert result.violations == ()
    assert sum(result.ended.values()) == result.tasks > 0
