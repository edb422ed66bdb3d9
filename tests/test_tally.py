"""Tests of the tally: counts are added up over all processes, and a whole run that tried too little fails."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests import tally

PLUGINS = ("-p", "tests.requirement_report", "-p", "tests.tally", "-p", "no:cacheprovider")
COUNTING = """
from tests import tally

def test_everything():
    for kind, least in tally.LEAST.items():
        if kind != "kills":
            tally.count(kind, least)
    tally.count("kills", True)
    tally.count("kills", {kills} - 1)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A small suite with this plugin, beside the tally of the run that tests it."""
    monkeypatch.delenv(tally.VARIABLE, raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\ntestpaths = .\nmarkers = covers(*ids): x")
    docs = pytester.mkdir("docs")
    (docs / "requirements.md").write_text("")
    (docs / "covered.txt").write_text("")
    return pytester


@pytest.mark.parametrize(("kills", "code"), [(60, 0), (59, 1)])
def test_a_whole_run_needs_its_kills(suite: pytest.Pytester, kills: int, code: int) -> None:
    suite.makepyfile(COUNTING.format(kills=kills))

    result = suite.runpytest_inprocess(*PLUGINS)

    assert result.ret == code
    assert (tally.left(suite.path)["kills"] == kills) == (code == 0)
    result.stdout.fnmatch_lines([f"tried: * {kills} kills, *"])


def test_a_partial_run_needs_none_and_leaves_none(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_one=COUNTING.format(kills=1))

    assert suite.runpytest_inprocess("test_one.py", *PLUGINS).ret == 0
    assert tally.left(suite.path) == {}


def test_what_a_run_left_counts_only_for_the_same_source(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "door.py").write_text("one")
    tally.leave(Counter({"kills": 6}), tmp_path)
    assert tally.left(tmp_path) == {"kills": 6}

    (tmp_path / "src" / "door.py").write_text("two")
    assert tally.left(tmp_path) == {}


def test_what_several_processes_count_is_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tally.VARIABLE, str(tmp_path / "tally"))
    for number in (1, 0, 5):
        tally.count("kills", number)

    assert tally.counted(tmp_path / "tally") == {"kills": 6}
