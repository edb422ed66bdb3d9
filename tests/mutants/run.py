"""Runs mutants: one process has imported everything and collected the tests, and forks for each of them.

Which test executes which line is found out first; a mutant meets only the tests that execute its line, the
quickest first, and is killed by the first that fails. A change outside of functions needs a fresh import, so
the process that forks for these has imported all but the product.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from tests.mutants.mutate import SOURCE, Mutant, files, mutants_of
from tests.mutants.swap import can_be_swapped, swap

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ("tests/machine", "tests/policy", "tests/mutants/test_walks.py")
SLOW: Final = ("tests/machine/test_explore.py", "tests/machine/test_planted_")
"""Not run: the walks to the last state of every world, of which test_walks.py takes the beginnings."""
OPTIONS: Final = ("-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=0")
CPU_SECONDS: Final = 60
KILLED: Final = 1
SURVIVED: Final = 0
NEEDS_IMPORT: Final = 3
REVIEWED: Final = Path(__file__).with_name("equivalent.txt")
"""Mutants that change nothing anybody could notice, each with the reason."""


class Verdict(msgspec.Struct, frozen=True):
    """What became of one mutant."""

    name: str
    is_killed: bool
    diff: str = ""
    how: str = ""


def reviewed() -> dict[str, str]:
    """Equivalent mutants by their key, with the reason."""
    lines = [line for line in REVIEWED.read_text().splitlines() if line and not line.startswith("#")]
    return {name.strip(): reason.strip() for name, _, reason in (line.partition(" || ") for line in lines)}


def all_mutants() -> list[Mutant]:
    """Of both rooms, without those that were found to be equivalent."""
    known = reviewed()
    return [one for path in files() for one in mutants_of(path) if one.key not in known]


def try_some(seed: int, count: int, say: Callable[[Verdict], None] = lambda _: None) -> list[Verdict]:
    """So many of them, chosen by chance."""
    found = all_mutants()
    random.Random(seed).shuffle(found)
    return try_these(found[:count], say)


def try_these(chosen: Sequence[Mutant], say: Callable[[Verdict], None] = lambda _: None) -> list[Verdict]:
    """In forked processes, one after the other."""
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in files()}
    quick = [one for one in chosen if can_be_swapped(texts[one.file], one.text, one.file)]
    slow = [one for one in chosen if one not in quick]
    verdicts: list[Verdict] = []

    def keep(mutant: Mutant, code: int) -> None:
        if code == NEEDS_IMPORT:
            slow.append(mutant)
            return
        how = {KILLED: "tests", SURVIVED: "nobody"}.get(code, "time")
        diff = mutant.diff(texts[mutant.file]) if code == SURVIVED else ""
        verdicts.append(Verdict(mutant.name, code != SURVIVED, diff, how))
        say(verdicts[-1])

    for number, code in _forked(lambda tell: _serve_quick(quick, texts, tell)):
        keep(quick[number], code)
    if slow and _waited(partial(_imported, _unchanged(slow[0], texts))) != SURVIVED:
        raise RuntimeError("the tests fail without any mutant")
    for mutant in slow:
        keep(mutant, _waited(partial(_imported, mutant)))
    return verdicts


def _unchanged(mutant: Mutant, texts: dict[str, str]) -> Mutant:
    return replace(mutant, text=texts[mutant.file])


def _forked(serve: Callable[[Callable[[int, int], None]], None]) -> Iterator[tuple[int, int]]:
    """A child that may tell numbers."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _silently(lambda: serve(lambda number, code: _tell(writing, number, code)))
    os.close(writing)
    with os.fdopen(reading) as lines:
        for line in lines:
            number, code = line.split()
            yield int(number), int(code)
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise RuntimeError(f"the tests could not be collected, or fail without any mutant (status {status})")


def _tell(writing: int, number: int, code: int) -> None:
    os.write(writing, f"{number} {code}\n".encode())


def _silently(work: Callable[[], object]) -> None:
    code = 1
    try:
        if "MUTANTS_ALOUD" not in os.environ:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
        os.chdir(ROOT)
        found = work()
        code = found if isinstance(found, int) else 0
    finally:
        os._exit(code)


def _waited(work: Callable[[], int], cpu_seconds: int = CPU_SECONDS) -> int:
    """What a child came to; one that uses up its time has noticed the change as well."""
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
        _silently(work)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def _pytest(plugin: object) -> int:
    import hypothesis
    import pytest

    quick = {"phases": (hypothesis.Phase.generate,), "derandomize": True, "database": None}
    hypothesis.settings.register_profile("mutants", deadline=None, **quick)  # type: ignore[arg-type]
    hypothesis.settings.load_profile("mutants")
    os.environ.pop("ENDWELL_TEST_TALLY", None)
    return int(pytest.main([*TESTS, *OPTIONS], plugins=[plugin]))


class _Runner:
    """Collects once; `items` are then run by hand, in children."""

    def __init__(self, serve: Callable[[_Runner], int]) -> None:
        self._serve = serve
        self.items: list[Any] = []
        self.has_failed = False
        self.code = SURVIVED

    def pytest_runtestloop(self, session: Any) -> bool:
        self.items = [item for item in session.items if not item.nodeid.startswith(SLOW)]
        self.code = self._serve(self)
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.has_failed = self.has_failed or report.failed

    def fails(self, item: Any) -> bool:
        """Run one test in this process."""
        self.has_failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return self.has_failed


def _serve_quick(mutants: Sequence[Mutant], texts: dict[str, str], tell: Callable[[int, int], None]) -> None:
    def serve(runner: _Runner) -> int:
        lines = _lines_of(runner)
        for number, mutant in enumerate(mutants):
            tell(number, _waited(partial(_met, runner, mutant, texts[mutant.file], lines)))
        return 0

    runner = _Runner(serve)
    if _pytest(runner) > 1 or not runner.items:
        raise RuntimeError("the tests could not be collected")


def _met(runner: _Runner, mutant: Mutant, before: str, lines: dict[tuple[str, int], list[int]]) -> int:
    try:
        swap(before, mutant.text, str(SOURCE / mutant.file))
    except ValueError:  # it closes over other variables than before
        return NEEDS_IMPORT
    length = mutant.old.count("\n") + 1
    own = [(mutant.file, line) for line in range(mutant.line, mutant.line + length)]
    near = {number for line in own for number in lines.get(line, ())}
    chosen = sorted(near, key=lambda number: runner.items[number].took)
    return KILLED if any(runner.fails(runner.items[number]) for number in chosen) else SURVIVED


def _lines_of(runner: _Runner) -> dict[tuple[str, int], list[int]]:
    """Which tests execute each line; each is run in a child, so that nothing is left behind."""
    found: dict[tuple[str, int], list[int]] = {}
    for number, item in enumerate(runner.items):
        began = time.monotonic()
        for file, line in _traced(runner, item):
            found.setdefault((file, line), []).append(number)
        item.took = time.monotonic() - began
    return found


def _traced(runner: _Runner, item: Any) -> list[tuple[str, int]]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        seen: set[tuple[str, int]] = set()
        sys.settrace(_tracer(seen))
        is_bad = runner.fails(item)
        sys.settrace(None)
        with os.fdopen(writing, "wb") as out:
            out.write(msgspec.json.encode(sorted(seen)))
        os._exit(1 if is_bad else 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        data = answer.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise RuntimeError(f"{item.nodeid} fails without any mutant")
    return msgspec.json.decode(data, type=list[tuple[str, int]])


def _tracer(seen: set[tuple[str, int]]) -> Callable[[FrameType, str, Any], Any]:
    ours = {str(path): path.relative_to(SOURCE).as_posix() for path in files()}

    def enter(frame: FrameType, event: str, about: Any) -> Any:
        file = ours.get(frame.f_code.co_filename)
        if file is None:
            return None

        def look(frame: FrameType, event: str, about: Any) -> Any:
            seen.add((file, frame.f_lineno))
            return look

        return look(frame, event, about)

    return enter


def _imported(mutant: Mutant) -> int:
    """Everything anew, with the changed text in the place of the file."""
    import importlib.abc
    import importlib.machinery

    path = str(SOURCE / mutant.file)
    plain = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> Any:
        return compile(mutant.text, path, "exec") if self.path == path else plain(self, fullname)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]

    def serve(runner: _Runner) -> int:
        return KILLED if any(runner.fails(item) for item in runner.items) else SURVIVED

    runner = _Runner(serve)
    code = _pytest(runner)
    return KILLED if code > 1 else runner.code  # it cannot even be imported
