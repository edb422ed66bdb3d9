"""The campaign itself: a part that reaches too little or breaks makes it fail, and its table says so."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests import tally
from tests.campaign import __main__ as campaign
from tests.campaign import driver, soak
from tests.campaign.figures import Figure, Line, Totals, is_good, table
from tests.campaign.parts import Part, Say
from tests.campaign.plan import CAMPAIGN, FIGURES_OF, PARTS, SOAK, Plan
from tests.planted.defects import DEFECTS

TWENTY = Figure("nuts", "nuts cracked", 20)
KINDS = Figure("kinds", "kinds of nuts", 2)
CRACKED = Figure("cracked", "of these cracked, at least", 95, "nuts")


def nothing(seed: int, size: int, say: Say) -> None:
    """Never called: pieces run in processes of their own."""


def plan_of(*figures: Figure, rounds: int | None = None) -> Plan:
    return Plan((Part("nuts", "nuts", 5, nothing, rounds),), figures)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a piece does, instead of a real one: Python code with `seed` and `size`."""
    path = tmp_path / "piece.py"

    def argv(piece: driver.Piece) -> list[str]:
        return [sys.executable, "-S", str(path), str(piece.seed), str(piece.size)]

    monkeypatch.setattr(driver.Piece, "argv", property(argv))
    return path


def says(path: Path, line: str, then: str = "") -> None:
    path.write_text(
        f"import sys, time\nseed, size = map(int, sys.argv[1:])\nprint('''{line}''', flush=True)\n{then}\n"
    )


def test_a_run_that_reaches_its_figures_is_good(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    says(script, '{"counts": {"nuts": 5}, "kinds": {"kinds": ["hazel", "wal"]}}')

    assert campaign.run(plan_of(TWENTY, KINDS), jobs=2) == 0

    said = capsys.readouterr().out
    assert "TOO FEW" not in said
    assert ["nuts", "cracked", "20", "20"] in [line.split() for line in said.splitlines()]


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ('{"counts": {"nuts": 4}, "kinds": {"kinds": ["hazel", "wal"]}}', "nuts cracked 20 16 TOO FEW"),
        ('{"counts": {"nuts": 5}, "kinds": {"kinds": ["hazel"]}}', "kinds of nuts 2 1 TOO FEW"),
    ],
)
def test_a_figure_that_is_missed_fails_the_run(
    script: Path, capsys: pytest.CaptureFixture[str], line: str, row: str
) -> None:
    says(script, line)

    assert campaign.run(plan_of(TWENTY, KINDS), jobs=2) == 1
    assert row in [" ".join(each.split()) for each in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("line", "then", "told"),
    [
        ('{"counts": {"nuts": 50}, "failed": ["seed 3 broke"]}', "", "DID NOT HOLD: seed 3 broke"),
        ('{"counts": {"nuts": 50}}', "sys.exit('no more')", "no more"),
        ('{"counts": {"nuts": 50}}', "time.sleep(60)", "none within 1 s"),
    ],
    ids=["a part that found something", "a part that breaks off", "a part that hangs"],
)
def test_whatever_goes_wrong_fails_the_run_however_much_was_reached(
    script: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    then: str,
    told: str,
) -> None:
    monkeypatch.setattr(driver, "PIECE_SECONDS", 1.0)
    says(script, line, then)

    assert campaign.run(plan_of(TWENTY, rounds=1), jobs=1) == 1
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(("caught", "are_planted"), [(len(DEFECTS), False), (len(DEFECTS) - 1, True)])
def test_defects_that_make_test_has_just_caught_are_not_planted_again(
    monkeypatch: pytest.MonkeyPatch, caught: int, are_planted: bool
) -> None:
    monkeypatch.setattr(tally, "left", lambda: Counter({"planted defects caught": caught}))
    totals = Totals()
    plan = campaign.without_what_was_just_done(CAMPAIGN, totals)

    assert (PARTS["planted"] in plan.parts) == are_planted
    assert totals.reached("defects") == (0 if are_planted else len(DEFECTS))
    assert plan.figures == CAMPAIGN.figures


def test_a_share_is_counted_of_the_whole() -> None:
    totals = Totals()
    totals.add(Line(counts={"nuts": 200, "cracked": 189}))
    assert "94 %  TOO FEW" in table([CRACKED], totals)

    totals.add(Line(counts={"cracked": 1}))
    assert is_good([CRACKED], totals)


def test_soak_totals_of_two_runs_add_up_and_no_seed_comes_twice(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text(
        "import sys\nseed, size = sys.argv[1:]\n"
        'print(\'{"counts": {"nuts": 5}, "kinds": {"kinds": ["\' + seed + \'"]}}\')\n'
    )
    kept = tmp_path / "totals.json"
    real = soak.endless

    def three(plan: Plan, totals: Totals, until: float) -> Iterator[driver.Piece]:
        return islice(real(plan, totals, until), 3)

    monkeypatch.setattr(soak, "endless", three)
    plan = plan_of(TWENTY, Figure("kinds", "kinds of nuts", 6))

    assert [soak.run(plan, kept, 1.0, jobs=1) for _ in range(2)] == [0, 0]

    totals = soak.read_totals(kept)
    assert (totals.counts["nuts"], len(totals.kinds["kinds"]), totals.begun) == (30, 6, {"nuts": 6})
    assert "every figure is reached" in capsys.readouterr().out


def test_a_failure_of_a_soak_is_kept_with_its_totals_and_fails_only_its_own_run(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "totals.json"
    monkeypatch.setattr(soak, "endless", lambda plan, totals, until: iter([driver.Piece("nuts", 7, 5)]))
    says(script, '{"failed": ["seed 7 broke"]}')
    assert soak.run(plan_of(TWENTY), kept, 1.0, jobs=1) == 1

    says(script, '{"counts": {"nuts": 5}}')
    assert soak.run(plan_of(TWENTY), kept, 1.0, jobs=1) == 0
    assert soak.read_totals(kept).failed == ["seed 7 broke"]


def test_a_soak_turns_to_the_part_that_misses_most() -> None:
    parts = tuple(Part(name, name, 5, nothing) for name in ("nuts", "figs"))
    plan = Plan(parts, (TWENTY, Figure("figs", "figs", 1000)))
    totals = Totals(counts={"nuts": 10, "figs": 400})

    assert soak.next_part(plan, totals).name == "figs"
    totals.add(Line(counts={"figs": 200}))
    assert soak.next_part(plan, totals).name == "nuts"
    totals.begun["nuts"] = 20  # and nothing came of them
    assert soak.next_part(plan, totals).name == "figs"


def test_a_soak_never_repeats_what_can_be_new_and_repeats_what_cannot() -> None:
    assert [soak.seed_of(PARTS["states"], number) for number in (1, 7, 8, 99)] == [1, 7, 8, 99]
    assert [soak.seed_of(PARTS["boundaries"], number) for number in (1, 2, 3)] == [1, 1, 1]
    assert len({soak.seed_of(PARTS["fuzz"], number) for number in range(200)}) == 200


def test_the_figures_are_those_that_were_promised() -> None:
    campaign_figures = {figure.name: figure.wanted for figure in CAMPAIGN.figures}
    soak_figures = {figure.name: figure.wanted for figure in SOAK.figures}
    promised = ("seeds", "faults", "fault kinds", "states", "kills", "zombies", "histories", "inputs")

    assert [campaign_figures[name] for name in promised] == [
        400,
        5000,
        25,
        2_000_000,
        300,
        100,
        1000,
        1_000_000,
    ]
    assert [soak_figures[name] for name in promised] == [
        *(50_000, 600_000, 25, 50_000_000, 20_000, 5_000, 100_000, 200_000_000),
    ]
    assert campaign_figures["defects"] >= 40
    assert soak_figures["killed"] == 95


def test_the_pieces_of_the_campaign_are_enough_and_half_of_their_seeds_are_fixed() -> None:
    found = list(campaign.pieces(CAMPAIGN))

    wanted = {figure.name: figure.wanted for figure in CAMPAIGN.figures}
    for name in ("simulations", "faults", "histories", "fuzz"):
        seeds = [piece.seed for piece in found if piece.part == name]
        assert len(set(seeds)) * PARTS[name].piece >= wanted[PARTS[name].counts]
        assert seeds[: (len(seeds) + 1) // 2] == list(range(1, (len(seeds) + 1) // 2 + 1))
    assert FIGURES_OF.keys() == PARTS.keys()
