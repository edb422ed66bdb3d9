"""Tests of the soak itself: totals outlive a killed run, and it fails until every figure is reached."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests import tally
from tests.patience import PATIENCE_SECONDS
from tests.proof.campaign import driver, soak
from tests.proof.campaign.figures import Figure, Line, Totals
from tests.proof.campaign.nuts import ALL_SHELLS, NUTS, SHELLS, TWENTY, nothing, plan_of, write_script
from tests.proof.campaign.outlook import Outlook
from tests.proof.campaign.parts import Part
from tests.proof.campaign.plan import PARTS, Plan

SIX = Figure("kinds", "kinds of nuts", 6)
NUTS_AND_SHELLS = Plan((NUTS, ALL_SHELLS), (TWENTY, SHELLS))
SOAKING = """
import sys
from pathlib import Path
from tests.proof.campaign import driver, soak
from tests.proof.campaign.nuts import TWENTY, run_script, plan_of
driver.Piece.argv = run_script(Path(sys.argv[1]))
soak.run(plan_of(TWENTY), Path(sys.argv[2]), 1.0, jobs=1)
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "that took too long"
        time.sleep(0.02)


@pytest.fixture
def totals_file(tmp_path: Path) -> Path:
    return tmp_path / "totals.json"


@pytest.fixture
def at_most(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """End a run after this many pieces instead of hours."""
    real = soak.pieces_until

    def set_to(count: int) -> None:
        def some(plan: Plan, totals: Totals, until: float) -> Iterator[driver.Piece]:
            return islice(real(plan, totals, until), count)

        monkeypatch.setattr(soak, "pieces_until", some)

    return set_to


def test_totals_of_two_runs_add_up_and_no_seed_comes_twice(
    script: Path, totals_file: Path, at_most: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    write_script(script, '{"counts": {"nuts": 5}, "kinds": {"kinds": ["SEED"]}}')
    at_most(3)

    assert [soak.run(plan_of(TWENTY, SIX), totals_file, 1.0, jobs=1) for _ in range(2)] == [1, 0]

    totals = soak.read_totals(totals_file)
    assert (totals.counts["nuts"], len(totals.kinds["kinds"]), totals.begun) == (30, 6, {"nuts": 6})
    first, second = capsys.readouterr().out.split("hours in all")[:2]
    assert "every figure is reached" not in first
    assert "every figure is reached" in second


def test_totals_outlive_a_soak_that_is_killed_and_its_pieces_do_not(
    script: Path, totals_file: Path, at_most: Callable[[int], None], tmp_path: Path
) -> None:
    """The piece waits for its input to close, which happens when its driver is gone."""
    knife, gone = tmp_path / "knife", tmp_path / "gone"
    waits = (
        f"import os; sys.stdin.read(); open({str(gone)!r}, 'a').write(str(os.path.exists({str(knife)!r})))"
    )
    write_script(script, '{"counts": {"nuts": 5}, "kinds": {"kinds": ["SEED"]}}', waits)
    command = [sys.executable, "-c", SOAKING, str(script), str(totals_file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tally.ROOT) as soaking:
        until(lambda: soak.read_totals(totals_file).reached("nuts") == 5)
        knife.touch()
        soaking.kill()
    until(lambda: gone.exists() and gone.read_text() != "")
    assert gone.read_text() == "True", "its input was closed before anybody was killed"
    killed = soak.read_totals(totals_file)
    assert killed.begun == {"nuts": 1}

    write_script(script, '{"counts": {"nuts": 5}, "kinds": {"kinds": ["SEED"]}}')
    at_most(3)
    assert soak.run(plan_of(TWENTY), totals_file, 1.0, jobs=1) == 0
    assert len(soak.read_totals(totals_file).kinds["kinds"]) == 4


def test_a_real_piece_ends_when_its_input_closes() -> None:
    command = driver.Piece("fuzz", 1, 100_000_000).argv
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        start_new_session=True,
        cwd=tally.ROOT,
        env={driver.ATTENDED: "1"},
    ) as piece:
        assert piece.poll() is None
        assert piece.stdin is not None
        piece.stdin.close()
        assert piece.wait(PATIENCE_SECONDS) == -9


def test_a_soak_fails_while_a_figure_is_missing_and_says_how_long_it_will_take(
    script: Path, totals_file: Path, at_most: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    write_script(script, '{"counts": {"nuts": 5}}')
    at_most(1)

    assert soak.run(plan_of(TWENTY), totals_file, 1.0, jobs=1) == 1

    said = capsys.readouterr().out
    assert "nuts cracked 20 5 TOO FEW" in " ".join(said.split())
    assert "hours more at this rate on this machine" in said


def test_what_is_missing_is_reckoned_from_what_this_run_gained() -> None:
    """Two pieces at a time for an hour: 20 figs took half an hour of that, 5 nuts one and a half."""
    figs = Part("figs", "figs", 5, nothing, figures=("figs",))
    plan = Plan((NUTS, figs, ALL_SHELLS), (TWENTY, Figure("figs", "figs", 100), SHELLS))
    totals = Totals(counts={"nuts": 5, "figs": 10})
    outlook = Outlook(plan, totals)
    totals.add(Line(counts={"nuts": 5, "figs": 20, "shells": 1}))  # a shell fell off beside something else

    rows = list(outlook.missing({"figs": 1800.0, "nuts": 5400.0}, 3600.0))

    assert [(row.figure.name, row.missing, row.gained, row.hours) for row in rows] == [
        ("nuts", 10, 5, 1.5),
        ("figs", 70, 20, 0.875),
        ("shells", 2, 1, None),
    ]
    assert "at least 2.4 hours more" in outlook.text({"figs": 1800.0, "nuts": 5400.0}, 3600.0)


def test_a_kept_failure_fails_every_run_until_it_is_removed_from_the_file(
    script: Path, totals_file: Path, at_most: Callable[[int], None]
) -> None:
    write_script(script, '{"counts": {"nuts": 20}, "failed": ["seed 7 broke"]}')
    at_most(1)
    assert soak.run(plan_of(TWENTY), totals_file, 1.0, jobs=1) == 1

    write_script(script, '{"counts": {"nuts": 5}}')
    assert soak.run(plan_of(TWENTY), totals_file, 1.0, jobs=1) == 1

    totals = soak.read_totals(totals_file)
    assert totals.failed == ["seed 7 broke"]
    totals.failed.clear()
    soak.keep_totals(totals_file, totals)
    assert soak.run(plan_of(TWENTY), totals_file, 1.0, jobs=1) == 0


def test_what_can_be_done_whole_is_done_first_and_what_broke_off_again(
    script: Path, totals_file: Path, at_most: Callable[[int], None]
) -> None:
    write_script(script, '{"kinds": {"PART": ["SEED"]}}', "sys.exit(part == 'shells' and seed == 2)")
    at_most(4)
    assert soak.run(NUTS_AND_SHELLS, totals_file, 1.0, jobs=1) == 1
    totals = soak.read_totals(totals_file)
    assert totals.begun == {"shells": 3, "nuts": 1}
    assert totals.done == {"shells": {1, 3}}

    assert [piece.seed for piece in soak.complete_pieces(NUTS_AND_SHELLS, totals)] == [2]


def test_what_was_done_whole_with_another_source_is_done_again() -> None:
    totals = Totals(counts={"nuts": 5}, kinds={"shells": {"1", "2", "3"}}, done={"shells": {1, 2, 3}})
    totals.sources["shells"] = "before"

    soak.begin_with("before", NUTS_AND_SHELLS, totals)
    assert not list(soak.complete_pieces(NUTS_AND_SHELLS, totals))

    soak.begin_with("now", NUTS_AND_SHELLS, totals)
    assert [piece.seed for piece in soak.complete_pieces(NUTS_AND_SHELLS, totals)] == [1, 2, 3]
    assert (totals.reached("shells"), totals.reached("nuts")) == (0, 5)


def test_a_soak_turns_to_the_part_that_misses_most() -> None:
    figs = Part("figs", "figs", 5, nothing)
    plan = Plan((NUTS, figs), (TWENTY, Figure("figs", "figs", 1000)))
    totals = Totals(counts={"nuts": 10, "figs": 400})

    assert soak.next_part(plan, totals) is figs
    totals.add(Line(counts={"figs": 200}))
    assert soak.next_part(plan, totals) is NUTS
    totals.begun["nuts"] = 20  # and nothing came of them
    assert soak.next_part(plan, totals) is figs


def test_a_soak_never_repeats_what_can_be_new() -> None:
    assert [soak.new_seed(PARTS["states"], number) for number in (1, 7, 8, 99)] == [1, 7, 8, 99]
    assert len({soak.new_seed(PARTS["fuzz"], number) for number in range(200)}) == 200


def test_all_mutants_all_defects_and_all_boundaries_are_tried_once_for_each_source() -> None:
    pieces = list(soak.complete_pieces(Plan(tuple(PARTS.values()), ()), Totals()))
    counted = {part: sum(piece.part == part for piece in pieces) for part in PARTS}
    assert {part: count for part, count in counted.items() if count} == {
        "boundaries": 2,
        "planted": PARTS["planted"].rounds,
        "mutants": 4,
    }
