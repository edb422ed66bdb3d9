"""A plan of nuts to crack, whose pieces are small scripts: it tests the campaign and the soak themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tests.proof.campaign.driver import Piece
from tests.proof.campaign.figures import Figure
from tests.proof.campaign.parts import Part, Say
from tests.proof.campaign.plan import Plan

TWENTY: Final = Figure("nuts", "nuts cracked", 20)
KINDS: Final = Figure("kinds", "kinds of nuts", 2)
CRACKED: Final = Figure("cracked", "of these cracked, at least", 95, "nuts")
SHELLS: Final = Figure("shells", "shells thrown away", 3)


def nothing(seed: int, size: int, say: Say) -> None:
    """Do nothing: pieces run in processes of their own."""


NUTS: Final = Part("nuts", "nuts", 5, nothing, figures=("nuts", "kinds", "cracked"))
ALL_SHELLS: Final = Part("shells", "shells", 1, nothing, rounds=3, repeats=True, figures=("shells",))
"""A part with three pieces, which only repeat themselves."""


def plan_of(*figures: Figure, rounds: int | None = None) -> Plan:
    return Plan((Part("nuts", "nuts", 5, nothing, rounds, figures=NUTS.figures),), figures)


def run_script(path: Path) -> property:
    """Make a property that replaces `Piece.argv` by this script."""

    def argv(piece: Piece) -> list[str]:
        return [sys.executable, "-S", str(path), piece.part, str(piece.seed), str(piece.size)]

    return property(argv)


def write_script(path: Path, line: str, then: str = "") -> None:
    """Write a script that prints a line, with its own part and seed as `PART` and `SEED`."""
    path.write_text(
        "import sys, time\n"
        "part, seed, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])\n"
        f"print('''{line}'''.replace('PART', part).replace('SEED', str(seed)), flush=True)\n"
        f"{then}\n"
    )
