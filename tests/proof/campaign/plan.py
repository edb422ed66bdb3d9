"""The plans of the campaign and the soak: their parts, and the figures that each must reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.proof.campaign import parts as p
from tests.proof.campaign.figures import Figure
from tests.proof.campaign.operations import OPERATIONS, STREAMED
from tests.proof.campaign.parts import Part
from tests.proof.planted.defects import DEFECTS

_OPERATIONS: Final = ("boundaries", "operations before", "operations after", "streamed")
_INPUTS: Final = ("inputs", "accepted", "refused")
_MUTANTS: Final = ("mutant shares", "mutants", "killed")
PARTS: Final[dict[str, Part]] = {
    part.name: part
    for part in (
        Part("faults", "kills", 30, p.faults, figures=("kills", "zombies")),
        Part("boundaries", "boundaries", 1, p.boundaries, rounds=2, repeats=True, figures=_OPERATIONS),
        Part("simulations", "seeds", 20, p.simulations, figures=("seeds", "faults", "fault kinds")),
        Part("restores", "restores", 20, p.restores, figures=("restores",)),
        Part("states", "states", 450_000, p.states, rounds=7, figures=("states",)),
        Part(
            "planted",
            "defects",
            6,
            p.planted,
            rounds=-(-len(DEFECTS) // 6),
            repeats=True,
            figures=("defects",),
        ),
        Part("histories", "histories", 50, p.histories, figures=("histories",)),
        Part("fuzz", "inputs", 100_000, p.fuzz, figures=_INPUTS),
        Part("pairs", "pairs", 20, p.pairs, figures=("pairs",)),
        Part(
            "mutants",
            "mutant shares",
            1,
            p.mutants,
            rounds=p.MUTANT_SHARES,
            repeats=True,
            figures=_MUTANTS,
        ),
    )
}


@dataclass(frozen=True)
class Plan:
    """The parts and the figures of a run."""

    parts: tuple[Part, ...]
    figures: tuple[Figure, ...]

    def only(self, names: Sequence[str]) -> Plan:
        """Reduce the plan to some parts and their figures."""
        parts = tuple(part for part in self.parts if part.name in names)
        wanted = {figure for part in parts for figure in part.figures}
        return Plan(parts, tuple(figure for figure in self.figures if figure.name in wanted))

    def scaled(self, share: float) -> Plan:
        """Reduce the plan to a share of its figures, to try the campaign; kinds and shares are left out."""
        counted = [figure for figure in self.figures if figure.name in SCALABLE]
        return Plan(
            self.parts,
            tuple(figure._replace(wanted=max(1, round(figure.wanted * share))) for figure in counted),
        )


SCALABLE: Final = (
    "seeds",
    "faults",
    "restores",
    "states",
    "kills",
    "zombies",
    "histories",
    "inputs",
    "pairs",
)


def _figures(scale: dict[str, int]) -> tuple[Figure, ...]:
    says = {
        "seeds": "simulated seeds of 2 simulated hours",
        "faults": "faults injected in them",
        "fault kinds": "kinds of these faults",
        "restores": "simulated installations lost and restored from a copy",
        "states": "states of the task machine",
        "operations before": "operations whose commit was crashed before it",
        "operations after": "operations whose commit was crashed after it",
        "streamed": "boundaries crashed where turns travel over streams",
        "pairs": "pairs of operations crashed in one history",
        "kills": "real processes killed while they held work",
        "zombies": "real processes frozen past their lease, and woken",
        "histories": "stateful histories on SQLite and PostgreSQL",
        "inputs": "fuzzed inputs",
        "accepted": "of these accepted, at least",
        "refused": "of these refused, at least",
        "defects": "planted defects caught",
        "mutant shares": "quarters of all mutants of machine/ and policy/",
        "killed": "of these mutants killed, at least",
    }
    shares = {"accepted": "inputs", "refused": "inputs", "killed": "mutants"}
    return tuple(Figure(name, says[name], wanted, shares.get(name, "")) for name, wanted in scale.items())


CAMPAIGN: Final = Plan(
    tuple(part for part in PARTS.values() if part.name not in ("pairs", "mutants")),
    _figures(
        {
            "seeds": 400,
            "faults": 5_000,
            "fault kinds": 25,
            "restores": 100,
            "states": 2_000_000,
            "operations before": len(OPERATIONS),
            "operations after": len(OPERATIONS),
            "streamed": 2 * len(STREAMED),
            "kills": 300,
            "zombies": 100,
            "histories": 1_000,
            "inputs": 1_000_000,
            "accepted": 10,
            "refused": 10,
            "defects": len(DEFECTS),
        }
    ),
)
SOAK: Final = Plan(
    tuple(PARTS.values()),
    _figures(
        {
            "seeds": 50_000,
            "faults": 600_000,
            "fault kinds": 25,
            "restores": 10_000,
            "states": 50_000_000,
            "operations before": len(OPERATIONS),
            "operations after": len(OPERATIONS),
            "streamed": 2 * len(STREAMED),
            "pairs": (2 * len(OPERATIONS)) ** 2 // 4,
            "kills": 20_000,
            "zombies": 5_000,
            "histories": 100_000,
            "inputs": 200_000_000,
            "accepted": 10,
            "refused": 10,
            "defects": len(DEFECTS),
            "mutant shares": p.MUTANT_SHARES,
            "killed": 95,
        }
    ),
)
