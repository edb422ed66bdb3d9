"""Counts what a whole run of the suite has tried; a pytest plugin.

A kill counts only if its victim held work or was inside a commit. A zombie is a process that was frozen past
its lease while it held work, and woken again. A run of the whole suite fails if a count is too low. A good
run leaves its counts behind, so that the campaign need not repeat what was just done with the same source.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
LEFT_BEHIND: Final = ".pytest_cache/tally.json"
VARIABLE: Final = "ENDWELL_TEST_TALLY"
LEAST: Final = {
    "fuzzed inputs": 200_000,
    "histories": 200,
    "kills": 60,
    "planted defects caught": 40,
    "zombies": 20,
}
"""What a run of the whole suite must reach."""


def count(kind: str, number: int = 1) -> None:
    """Count things of one kind that took place."""
    if place := os.environ.get(VARIABLE):
        handle = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, f"{kind} {int(number)}\n".encode())
        finally:
            os.close(handle)


def counted(path: Path) -> Counter[str]:
    """Add up the counts of all processes."""
    found: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        kind, _, number = line.rpartition(" ")
        found[kind] += int(number)
    return found


def digest(root: Path = ROOT) -> str:
    """Hash the product and its tests."""
    found = hashlib.sha256()
    for path in sorted(path for room in ("src", "tests") for path in (root / room).rglob("*")):
        if path.suffix in (".py", ".sql", ".diff"):
            found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def leave(counts: Counter[str], root: Path = ROOT) -> None:
    """Keep the counts of a good whole run."""
    path = root / LEFT_BEHIND
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"digest": digest(root), "counts": counts}))


def left(root: Path = ROOT) -> Counter[str]:
    """Return the counts of the last good whole run, if it had this very source."""
    path = root / LEFT_BEHIND
    found = json.loads(path.read_text()) if path.exists() else {}
    return Counter(found["counts"] if found.get("digest") == digest(root) else {})


class Tally:
    """The plugin of the controlling process."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Iterator[None]:
        if exitstatus == pytest.ExitCode.OK and self._is_whole_run() and self._missing():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif exitstatus == pytest.ExitCode.OK and self._is_whole_run():
            leave(counted(self._path), self._config.rootpath)
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        seen = counted(self._path)
        if seen:
            terminalreporter.section("tried")
            told = ", ".join(f"{number} {kind}" for kind, number in sorted(seen.items()))
            terminalreporter.write_line(f"tried: {told}")
            for kind, least in self._missing().items() if self._is_whole_run() else ():
                terminalreporter.write_line(f"a whole run needs {least} {kind}; this one saw {seen[kind]}")

    def _is_whole_run(self) -> bool:
        report = self._config.pluginmanager.get_plugin("requirement-report")
        return report is not None and bool(report.is_whole_run())

    def _missing(self) -> dict[str, int]:
        seen = counted(self._path)
        return {kind: least for kind, least in LEAST.items() if seen[kind] < least}

    def pytest_unconfigure(self) -> None:
        self._path.unlink(missing_ok=True)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or VARIABLE in os.environ:
        return
    handle, name = tempfile.mkstemp(prefix="endwell-tally")
    os.close(handle)
    os.environ[VARIABLE] = name
    config.add_cleanup(_forget)
    config.pluginmanager.register(Tally(config, Path(name)), "tally")


def _forget() -> None:
    os.environ.pop(VARIABLE, None)
