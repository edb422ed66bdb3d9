"""Tests of the requirement report: only tests that ran and passed count, and a lost test is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.requirement_report import read_claims, read_requirements

REPOSITORY = Path(__file__).parents[1]
Suite = Callable[..., pytest.RunResult]

REQUIREMENTS = """\
# Requirements
- **S0.1** Water is wet.
- **S0.2** Fire is hot.
- **S0.10** (documented) Why water is wet.
- **T1b** A trap.
"""

INI = """\
[pytest]
testpaths = checks
requirements_file = wanted.md
covered_file = claimed.txt
markers = covers(*ids): what a test shows
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """Run a small suite with the report switched on, given its tests and claims."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # most of the time would go into loading them

    def run(tests: str, *arguments: str, claims: str = "") -> pytest.RunResult:
        pytester.makefile(".ini", pytest=INI)
        pytester.path.joinpath("wanted.md").write_text(REQUIREMENTS)
        pytester.path.joinpath("claimed.txt").write_text(claims)
        checks = pytester.mkdir("checks")
        checks.joinpath("test_it.py").write_text(f"import pytest\ncovers = pytest.mark.covers\n{tests}")
        run_pytest = pytester.runpytest_subprocess if "xdist" in arguments else pytester.runpytest_inprocess
        return run_pytest("-p", "tests.requirement_report", *arguments)

    return run


def summary(covered: int, still_open: int) -> list[str]:
    counts = f"tests of this run show {covered} of the {covered + still_open} that are built"
    others = "0 belong to features that are not built yet, 1 only give reasons"
    return [f"requirements: {counts}; {others} (see wanted.md and claimed.txt)"]


PASSING = "@covers('S0.1', 'T1b')\ndef test_water(): pass\n"
FAILING = "@covers('S0.2')\ndef test_fire(): assert False\n"


@pytest.mark.parametrize("processes", [[], ["-p", "xdist", "-n", "2"]], ids=["one process", "several"])
def test_ids_of_passing_tests_are_counted_in_one_process_and_in_several(
    suite: Suite, processes: list[str]
) -> None:
    result = suite(PASSING, *processes, claims="S0.1\n")

    assert result.ret == 0
    result.stdout.fnmatch_lines(summary(covered=2, still_open=1))


@pytest.mark.parametrize("processes", [[], ["-p", "xdist", "-n", "2"]], ids=["one process", "several"])
def test_a_claim_without_a_passing_test_fails_the_whole_run(suite: Suite, processes: list[str]) -> None:
    result = suite(PASSING, *processes, claims="# why not\nS0.2\nS0.1\n")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["claimed.txt lists ids that no passing test covers: S0.2"])


@pytest.mark.parametrize(
    "not_shown",
    [
        FAILING,
        "@covers('S0.2')\n@pytest.mark.skip\ndef test_fire(): pass\n",
        "@covers('S0.2')\n@pytest.mark.xfail\ndef test_fire(): assert False\n",
        "@covers('S0.2')\n@pytest.mark.xfail\ndef test_fire(): pass\n",
        "@covers('S0.2')\ndef test_fire(request): request.addfinalizer(lambda: 1 / 0)\n",
    ],
    ids=["failed", "skipped", "expected to fail", "passed unexpectedly", "failed while tidying up"],
)
def test_a_test_that_did_not_pass_shows_nothing(suite: Suite, not_shown: str) -> None:
    result = suite(not_shown, claims="S0.2\n")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(summary(covered=0, still_open=3))
    result.stdout.fnmatch_lines(["*no passing test covers: S0.2"])


def test_one_passing_test_is_enough_for_an_id(suite: Suite) -> None:
    result = suite(FAILING + "@covers('S0.2')\ndef test_more_fire(): pass\n", claims="S0.2\n")

    result.stdout.fnmatch_lines(summary(covered=1, still_open=2))
    result.stdout.no_fnmatch_line("*no passing test covers*")


@pytest.mark.parametrize("selection", [["-k", "water"], ["checks/test_it.py"], ["--deselect", "x"]], ids=str)
def test_a_partial_run_does_not_hold_claims_against_anyone(suite: Suite, selection: list[str]) -> None:
    assert suite(PASSING, *selection, claims="S0.2\n").ret == 0


def test_an_id_that_does_not_exist_fails_its_test_in_any_run(suite: Suite) -> None:
    result = suite("@covers('S0.1', 'S9.9')\ndef test_air(): pass\n", "-k", "air")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["no such requirement: S9.9", *summary(covered=0, still_open=3)])


def test_a_claimed_id_that_does_not_exist_fails_the_run(suite: Suite) -> None:
    result = suite(PASSING, claims="S9.9\n")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["claimed.txt lists ids that do not exist: S9.9"])


def test_an_id_may_not_be_given_twice(tmp_path: Path) -> None:
    twice = tmp_path / "wanted.md"
    twice.write_text("- **S0.1** One.\n- **S0.1** Two.\n")

    with pytest.raises(pytest.UsageError, match=r"S0\.1"):
        read_requirements(twice)


def test_the_claims_are_written_from_a_whole_green_run(suite: Suite, pytester: pytest.Pytester) -> None:
    more = "@covers('S0.2')\ndef test_fire(): pass\n"
    assert suite(PASSING + more, "--write-covered", claims="S0.1\n").ret == 0

    written = pytester.path / "claimed.txt"
    assert read_claims(written) == {"S0.1", "S0.2", "T1b"}
    assert written.read_text().endswith("\nS0.1\nS0.2\nT1b\n")


@pytest.mark.parametrize(("tests", "selection"), [(PASSING + FAILING, []), (PASSING, ["-k", "water"])])
def test_the_claims_are_not_written_from_any_other_run(
    suite: Suite, pytester: pytest.Pytester, tests: str, selection: list[str]
) -> None:
    result = suite(tests, "--write-covered", *selection, claims="S0.2\n")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert (pytester.path / "claimed.txt").read_text() == "S0.2\n"


def test_the_requirements_of_this_repository_are_complete() -> None:
    numbers = {"S0": 86, "S1": 108, "S2": 33, "S3": 49, "S4": 60}
    expected = [f"{part}.{n}" for part, last in numbers.items() for n in range(1, last + 1)]
    traps = ["T1", "T1b", *(f"T{n}" for n in range(2, 21))]

    requirements = read_requirements(REPOSITORY / "docs" / "requirements.md")

    assert list(requirements.ids) == expected + traps
    assert requirements.documented == {"S0.86", "S2.12", "S2.13", "S2.32", "S2.33", "S3.49", "S4.2"}
    assert read_claims(REPOSITORY / "docs" / "covered.txt") <= set(requirements.ids)
