"""A pytest plugin that reports which requirements are shown by tests that ran and passed.

A test names what it shows: `@pytest.mark.covers("S0.16", "S0.17")`. An id that docs/requirements.md does not
have fails that test. docs/covered.txt lists the ids that are claimed as covered: a run of the whole suite
fails when one of them has no passing test. `make covered` writes that list from a whole run that passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROPERTY = "covers"
NARROWING = (
    "collectonly",
    "quick",
    "deselect",
    "ignore",
    "ignore_glob",
    "keyword",
    "lf",
    "markexpr",
    "maxfail",
    "stepwise",
)
_ENTRY = re.compile(
    r"^- \*\*(?P<id>[ST][\w.]+)\*\* (?P<documented>\(documented\) )?(?P<planned>\(not built yet\) )?",
    re.MULTILINE,
)
_SECTION = re.compile(r"^## (?P<title>.*)$", re.MULTILINE)
_PLANNED = "(not built yet)"
_HEADER = """\
# Requirements that a passing test shows to hold, one id per line.
# A run of the whole suite fails when one of them loses its test. Written by `make covered`.
"""


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """The ids in the order of the page. `documented` ones give reasons, `planned` ones are not built."""

    ids: tuple[str, ...]
    documented: frozenset[str]
    planned: frozenset[str]

    def in_order(self, ids: Iterable[str]) -> list[str]:
        wanted = set(ids)
        return [known for known in self.ids if known in wanted] + sorted(wanted.difference(self.ids))


@dataclass(kw_only=True)
class Run:
    """The ids that the tests of this run have shown, gathered from the reports of all processes."""

    shown_by: dict[str, set[str]] = field(default_factory=dict)
    not_passed: set[str] = field(default_factory=set)

    def add(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed" or hasattr(report, "wasxfail"):
            self.not_passed.add(report.nodeid)
        elif report.when == "call":
            ids = {str(value) for name, value in report.user_properties if name == PROPERTY}
            self.shown_by.setdefault(report.nodeid, set()).update(ids)

    def covered(self) -> set[str]:
        passed = (ids for test, ids in self.shown_by.items() if test not in self.not_passed)
        return set().union(*passed)


def read_requirements(path: Path) -> Requirements:
    text = path.read_text(encoding="utf-8")
    entries = list(_ENTRY.finditer(text))
    ids = tuple(entry["id"] for entry in entries)
    if repeated := {one for one in ids if ids.count(one) > 1}:
        raise pytest.UsageError(f"{path} has an id twice: {', '.join(sorted(repeated))}")
    return Requirements(
        ids=ids,
        documented=frozenset(one["id"] for one in entries if one["documented"]),
        planned=frozenset(one["id"] for one in entries if one["planned"] or _is_planned(text, one.start())),
    )


def _is_planned(text: str, place: int) -> bool:
    """Whether the heading above marks its whole section as planned."""
    titles = [one["title"] for one in _SECTION.finditer(text, 0, place)]
    return bool(titles) and titles[-1].endswith(_PLANNED)


def read_claims(path: Path) -> set[str]:
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return {line for line in lines if line}


def write_claims(path: Path, ids: Iterable[str]) -> None:
    path.write_text(_HEADER + "".join(f"{one}\n" for one in ids), encoding="utf-8")


class RequirementReport:
    """The plugin, one per pytest process; only the controlling one reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._requirements_path = config.rootpath / str(config.getini("requirements_file"))
        self._claims_path = config.rootpath / str(config.getini("covered_file"))
        self._requirements = read_requirements(self._requirements_path)
        self._run = Run()
        self._notes: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        ids = [str(one) for marker in item.iter_markers("covers") for one in marker.args]
        if unknown := set(ids).difference(self._requirements.ids):
            pytest.fail(f"no such requirement: {', '.join(sorted(unknown))}", pytrace=False)
        item.user_properties.extend((PROPERTY, one) for one in ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._run.add(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if hasattr(self._config, "workerinput"):
            return
        green = exitstatus == pytest.ExitCode.OK
        if self._config.getoption("write_covered"):
            self._write(allowed=green and self.is_whole_run())
        elif self.is_whole_run():
            self._check_claims()
        if green and self._notes:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("requirements")
        for note in self._notes:
            terminalreporter.write_line(note, red=True)
        terminalreporter.write_line(self._summary())

    def is_whole_run(self) -> bool:
        """Whether all tests were asked for."""
        narrowed = any(self._config.getoption(name, None) for name in NARROWING)
        return not narrowed and self._config.args_source is not pytest.Config.ArgsSource.ARGS

    def _check_claims(self) -> None:
        claims = read_claims(self._claims_path)
        place = self._shown(self._claims_path)
        if unknown := claims.difference(self._requirements.ids):
            self._notes.append(f"{place} lists ids that do not exist: {self._names(unknown)}")
        if lost := claims.difference(unknown, self._run.covered()):
            self._notes.append(f"{place} lists ids that no passing test covers: {self._names(lost)}")

    def _write(self, *, allowed: bool) -> None:
        if not allowed:
            self._notes.append("covered ids are written only from a run of the whole suite that passes")
            return
        write_claims(self._claims_path, self._requirements.in_order(self._run.covered()))

    def _summary(self) -> str:
        known = self._requirements
        covered = self._run.covered() - known.documented
        planned = known.planned - covered - known.documented
        built = len(known.ids) - len(known.documented) - len(planned)
        where = f"{self._shown(self._requirements_path)} and {self._shown(self._claims_path)}"
        return (
            f"requirements: tests of this run show {len(covered)} of the {built} that are built; "
            f"{len(planned)} belong to features that are not built yet, "
            f"{len(known.documented)} only give reasons (see {where})"
        )

    def _names(self, ids: Iterable[str]) -> str:
        return ", ".join(self._requirements.in_order(ids))

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._config.rootpath))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("requirements_file", "the list of requirements", default="docs/requirements.md")
    parser.addini("covered_file", "the ids claimed as covered", default="docs/covered.txt")
    parser.addoption(
        "--write-covered",
        action="store_true",
        help="write the covered ids into covered_file after a whole run",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(RequirementReport(config), "requirement-report")
