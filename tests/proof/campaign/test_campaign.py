"""Tests of the campaign itself: a missed figure or a failure fails it, and its table says so."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests import tally
from tests.proof.campaign import __main__ as campaign
from tests.proof.campaign import driver
from tests.proof.campaign.figures import Line, Totals, is_good, table
from tests.proof.campaign.nuts import CRACKED, KINDS, TWENTY, plan_of, write_script
from tests.proof.campaign.plan import CAMPAIGN, PARTS, SOAK
from tests.proof.planted.defects import DEFECTS


def test_a_run_that_reaches_its_figures_is_good(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_script(script, '{"counts": {"nuts": 5}, "kinds": {"kinds": ["hazel", "wal"]}}')

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
    write_script(script, line)

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
def test_a_failed_piece_fails_the_run_although_its_figures_are_reached(
    script: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    then: str,
    told: str,
) -> None:
    monkeypatch.setattr(driver, "PIECE_SECONDS", 1.0)
    write_script(script, line, then)

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
    assert campaign_figures["streamed"] >= 40
    assert soak_figures["killed"] == 95


def test_the_pieces_of_the_campaign_are_enough_and_half_of_their_seeds_are_fixed() -> None:
    found = list(campaign.pieces(CAMPAIGN))

    wanted = {figure.name: figure.wanted for figure in CAMPAIGN.figures}
    for name in ("simulations", "faults", "histories", "fuzz"):
        seeds = [piece.seed for piece in found if piece.part == name]
        assert len(set(seeds)) * PARTS[name].piece >= wanted[PARTS[name].counts]
        assert seeds[: (len(seeds) + 1) // 2] == list(range(1, (len(seeds) + 1) // 2 + 1))
