"""docs/reliability.md names every invariant, and only invariants and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from endwell.testing.faults.all import LISTS as FAULT_LISTS
from endwell.testing.faults.registry import FAULTS
from endwell.testing.oracle.judging import LISTS
from endwell.testing.oracle.registry import INVARIANTS

PAGE = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()


def test_every_invariant_is_on_the_page_and_everything_on_the_page_exists() -> None:
    table = PAGE.partition("| promise | judged by")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", table)) - {"oracle"}
    assert LISTS
    assert FAULT_LISTS
    assert INVARIANTS.keys() <= named
    assert named <= INVARIANTS.keys() | FAULTS.keys()
