"""A plan of nuts to crack, whose pieces are small scripts: for trying the campaign and the soak as such."""

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
    """Never called: pieces run in processes of their own."""


NUTS: Final = Part("nuts", "nuts", 5, nothing, figures=("nuts", "kinds", "cracked"))
ALL_SHELLS: Final = Part("shells", "shells", 1, nothing, rounds=3, repeats=True, figures=("shells",))
"""There are three, and then there are no more."""


def plan_of(*figures: Figure, rounds: int | None = None) -> Plan:
    return Plan((Part("nuts", "nuts", 5, nothing, rounds, figures=NUTS.figures),), figures)


def is_script(path: Path) -> property:
    """In the place of `Piece.argv`."""

    def argv(piece: Piece) -> list[str]:
        return [sys.executable, "-S", str(path), piece.part, str(piece.seed), str(piece.size)]

    return property(argv)


def says(path: Path, line: str, then: str = "") -> None:
    """What such a script does: print a line in which `PART` and `SEED` stand for its own, then more."""
    path.write_text(
        "import sys, time\n"
        "part, seed, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])\n"
        f"print('''{line}'''.replace('PART', part).replace('SEED', str(seed)), flush=True)\n"
        f"{then}\n"
    )
