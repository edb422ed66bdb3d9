"""Runs mutants: one process imports everything and collects the tests, and forks for each mutant.

It first finds out which test executes which line. A mutant meets only the tests that execute its line, the
quickest first, then the walks; the first failing test kills it. A change outside of functions, or of a line
that no test executes, needs a fresh import: the process that forks for these has imported everything but the
product and its tests. Such a mutant meets the tests that are named after its file first, then all of them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import msgspec

from tests.proof.mutants.mutate import SOURCE, Mutant, files, mutants_of
from tests.proof.mutants.swap import compile_file, swap

ROOT: Final = Path(__file__).parents[3]
TESTS: Final = ("tests/machine", "tests/policy", "tests/proof/mutants/test_walks.py")
SLOW: Final = ("tests/machine/walk/test_explore.py", "tests/machine/walk/test_planted_")
"""Not run: walks to the last state of every world; test_walks.py runs their beginnings."""
WALKS: Final = (
    "tests/proof/mutants/test_walks.py",
    "tests/machine/walk/test_stateful.py",
    "tests/machine/walk/test_canonical.py",
)
"""Walks execute nearly every line and take seconds: mutants meet them last."""
OPTIONS: Final = (
    "-q",
    "-x",
    "--no-header",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "--timeout=0",
    "--tb=no",
)
PLAIN: Final = "--assert=plain"
"""No rewriting of assertions: it takes time, and changes how the product is imported."""
CPU_SECONDS: Final = 60
KILLED: Final = 1
SURVIVED: Final = 0
NEEDS_IMPORT: Final = 3
NOT_LOADED: Final = 4
REVIEWED: Final = Path(__file__).with_name("equivalent.txt")
"""Mutants that no test could notice, each with the reason."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of one mutant."""

    name: str
    is_killed: bool
    diff: str = ""
    how: str = ""


def reviewed() -> dict[str, str]:
    """Read the equivalent mutants by their key, with the reason."""
    lines = [line for line in REVIEWED.read_text().splitlines() if line and not line.startswith("#")]
    return {name.strip(): reason.strip() for name, _, reason in (line.partition(" || ") for line in lines)}


def all_mutants() -> tuple[list[Mutant], list[Mutant]]:
    """List the mutants of both rooms: those to be noticed, and those known to be equivalent."""
    known = reviewed()
    found = [one for path in files() for one in mutants_of(path)]
    return [one for one in found if one.key not in known], [one for one in found if one.key in known]


def try_these(
    chosen: Sequence[Mutant], say: Callable[[Verdict], None] = lambda _: None, *, walks: bool = True
) -> list[Verdict]:
    """Try mutants in forked processes, one after the other. Without a mutant no test may fail."""
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in files()}
    quick = [one for one in chosen if one.function]
    slow = [one for one in chosen if not one.function]
    verdicts: list[Verdict] = []

    def keep(mutant: Mutant, code: int) -> None:
        if code == NEEDS_IMPORT:
            slow.append(mutant)
            return
        if code == NOT_LOADED:
            raise RuntimeError(f"no test imports {mutant.file}")
        how = {KILLED: "tests", SURVIVED: "none"}.get(code, "time")
        diff = mutant.diff(texts[mutant.file]) if code == SURVIVED else ""
        verdicts.append(Verdict(mutant.name, code != SURVIVED, diff, how))
        say(verdicts[-1])

    for number, code in _forked(lambda tell: _serve_quick(quick, texts, tell, walks=walks)):
        keep(quick[number], code)
    _be_ready_to_import([_unchanged(mutant, texts) for mutant in slow])
    for mutant in slow:
        keep(mutant, _meet_after_import(mutant))
    return verdicts


def _be_ready_to_import(unchanged: Sequence[Mutant]) -> None:
    """Import everything but the product, and check that no test fails without a change."""
    if not unchanged:
        return
    _import_others()
    asked = {_own_tests(mutant): mutant for mutant in unchanged} | {TESTS: unchanged[0]}
    for tests, mutant in asked.items():
        if tests and _wait_for(partial(_import_mutant, mutant, tests)) != SURVIVED:
            raise RuntimeError(f"{' '.join(tests)}: a test fails without any mutant")


def _meet_after_import(mutant: Mutant) -> int:
    """Meet the mutant's own tests, then all, after a fresh import."""
    own = _own_tests(mutant)
    code = _wait_for(partial(_import_mutant, mutant, own)) if own else SURVIVED
    return _wait_for(partial(_import_mutant, mutant, TESTS)) if code == SURVIVED else code


def _own_tests(mutant: Mutant) -> tuple[str, ...]:
    path = Path(mutant.file)
    found = (ROOT / "tests" / path.parent).glob(f"test_{path.stem}*.py")
    return tuple(sorted(one.relative_to(ROOT).as_posix() for one in found))


def _import_others() -> None:
    """Import what the tests import beside the product, so that no child has to."""
    reading, writing = os.pipe()

    def collect() -> int:
        _pytest(_Runner(lambda _: 0), TESTS)
        with os.fdopen(writing, "wb") as out:
            out.write(msgspec.json.encode(sorted(name for name in sys.modules if _is_others(name))))
        return 0

    child = os.fork()
    if child == 0:
        os.close(reading)
        _silently(collect)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        names = msgspec.json.decode(answer.read() or b"[]", type=list[str])
    os.waitpid(child, 0)
    for name in names:
        with contextlib.suppress(Exception):  # a module that only another one can import
            importlib.import_module(name)


def _is_others(name: str) -> bool:
    return name.split(".")[0] not in ("endwell", "tests", "conftest", "__main__", "__mp_main__")


def _unchanged(mutant: Mutant, texts: dict[str, str]) -> Mutant:
    return replace(mutant, text=texts[mutant.file])


def _forked(serve: Callable[[Callable[[int, int], None]], None]) -> Iterator[tuple[int, int]]:
    """Run a function in a forked child; yield the numbers that it writes."""
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


def _wait_for(work: Callable[[], int], cpu_seconds: int = CPU_SECONDS) -> int:
    """Wait for a child; a child that uses up its time counts as killed."""
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
        _silently(work)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def _pytest(plugin: object, tests: Sequence[str]) -> int:
    import hypothesis
    import pytest

    quick = {"phases": (hypothesis.Phase.generate,), "derandomize": True, "database": None}
    hypothesis.settings.register_profile("mutants", deadline=None, **quick)  # type: ignore[arg-type]
    hypothesis.settings.load_profile("mutants")
    os.environ.pop("ENDWELL_TEST_TALLY", None)
    return int(pytest.main([*tests, *OPTIONS, PLAIN], plugins=[plugin]))


class _Runner:
    """Collects tests once; `items` are then run by hand, in children."""

    def __init__(self, serve: Callable[[_Runner], int]) -> None:
        self._serve = serve
        self.items: list[Any] = []
        self.walks: list[Any] = []
        self.has_failed = False
        self.code = KILLED  # unless the tests can be collected, and none of them fails

    def pytest_runtestloop(self, session: Any) -> bool:
        met = [item for item in session.items if not item.nodeid.startswith(SLOW)]
        self.items = [item for item in met if not item.nodeid.startswith(WALKS)]
        self.walks = [item for item in met if item.nodeid.startswith(WALKS)]
        self.code = self._serve(self)
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.has_failed = self.has_failed or report.failed

    def fails(self, item: Any) -> bool:
        """Run one test in this process."""
        self.has_failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return self.has_failed


def _serve_quick(
    mutants: Sequence[Mutant], texts: dict[str, str], tell: Callable[[int, int], None], *, walks: bool
) -> None:
    def serve(runner: _Runner) -> int:
        runner.walks = runner.walks if walks else []
        lines = _lines_of(runner)
        for file, text in texts.items():
            compile_file(text, str(SOURCE / file))
        for number, mutant in enumerate(mutants):
            tell(number, _wait_for(partial(_met, runner, mutant, texts[mutant.file], lines)))
        return 0

    runner = _Runner(serve)
    if _pytest(runner, TESTS) > 1 or not runner.items:
        raise RuntimeError("the tests could not be collected")


def _met(runner: _Runner, mutant: Mutant, before: str, lines: dict[tuple[str, int], list[int]]) -> int:
    try:
        swap(before, mutant.text, str(SOURCE / mutant.file))
    except ValueError:  # or it closes over other variables than before
        return NEEDS_IMPORT
    length = mutant.old.count("\n") + 1
    own = [(mutant.file, line) for line in range(mutant.line, mutant.line + length)]
    near = {number for line in own for number in lines.get(line, ())}
    if not near:  # perhaps it is executed when the module is imported
        return NEEDS_IMPORT
    chosen = [runner.items[number] for number in sorted(near, key=lambda number: runner.items[number].took)]
    return KILLED if any(runner.fails(item) for item in (*chosen, *runner.walks)) else SURVIVED


def _lines_of(runner: _Runner) -> dict[tuple[str, int], list[int]]:
    """Find which tests execute each line, and how long each takes, in a child."""
    reading, writing = os.pipe()

    def ask() -> int:
        with os.fdopen(writing, "wb") as out:
            out.write(msgspec.json.encode([_traced(runner, item) for item in runner.items]))
        return 0

    child = os.fork()
    if child == 0:
        os.close(reading)
        _silently(ask)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        data = answer.read()
    os.waitpid(child, 0)
    if not data:
        raise RuntimeError("a test fails without any mutant")
    found: dict[tuple[str, int], list[int]] = {}
    for number, (took, lines) in enumerate(msgspec.json.decode(data, type=list[_Traced])):
        runner.items[number].took = took
        for line in lines:
            found.setdefault(line, []).append(number)
    return found


_Traced = tuple[float, list[tuple[str, int]]]


def _traced(runner: _Runner, item: Any) -> _Traced:
    seen: set[tuple[str, int]] = set()
    began = time.process_time()
    sys.settrace(_tracer(seen))
    is_bad = runner.fails(item)
    sys.settrace(None)
    if is_bad:
        raise RuntimeError(f"{item.nodeid} fails without any mutant")
    return time.process_time() - began, sorted(seen)


def _tracer(seen: set[tuple[str, int]]) -> Callable[[FrameType, str, Any], Any]:
    """Note each line once; leave functions alone whose lines have all been seen."""
    ours = {str(path): path.relative_to(SOURCE).as_posix() for path in files()}
    unseen: dict[CodeType, set[int]] = {}

    def enter(frame: FrameType, event: str, about: Any) -> Any:
        code = frame.f_code
        left = unseen.get(code)
        if left is None:
            lines = {line for _, _, line in code.co_lines() if line} if code.co_filename in ours else set()
            left = unseen[code] = lines
        if not left:
            return None
        file = ours[code.co_filename]

        def look(frame: FrameType, event: str, about: Any) -> Any:
            seen.add((file, frame.f_lineno))
            left.discard(frame.f_lineno)
            return look if left else None

        return look(frame, event, about)

    return enter


def _import_mutant(mutant: Mutant, tests: Sequence[str]) -> int:
    """Import everything again, with the changed text in place of the file."""
    path = str(SOURCE / mutant.file)
    plain = importlib.machinery.SourceFileLoader.get_code
    loaded: list[str] = []

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> Any:
        if self.path != path:
            return plain(self, fullname)
        loaded.append(fullname)
        return compile(mutant.text, path, "exec")

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]

    def serve(runner: _Runner) -> int:
        return KILLED if any(runner.fails(item) for item in (*runner.items, *runner.walks)) else SURVIVED

    runner = _Runner(serve)
    _pytest(runner, tests)
    return runner.code if loaded else NOT_LOADED
