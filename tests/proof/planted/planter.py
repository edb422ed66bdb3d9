"""Runs tests against changed copies of the product: `python -m tests.proof.planted.planter`.

It reads one request per line, `{"edits": [[file, old, new], ...], "tests": [...], "seconds": 60}`, and writes
one answer, `{"code": n, "said": "..."}`. It imports everything but the product once; each request is a forked
child that imports the copy. Endwell must not be imported here.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[3]
OTHERS: Final = (
    *("apsw", "asyncpg", "click", "hypothesis.stateful", "msgspec", "psutil", "pydantic", "pytest"),
    *("rich.table", "_pytest.pytester", "pytest_asyncio.plugin", "pytest_timeout", "asyncio"),
)
GREEN: Final = 0
RED: Final = 1
BROKEN: Final = 90
"""The edit no longer fits the product, or the tests did not run on the copy."""
LATE: Final = 91
PATIENCE_SECONDS: Final = "6"
"""Patience of tests under a defect: what they wait for may never come."""
OPTIONS: Final = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore")


class DoesNotFit(Exception):
    """The text to be changed does not occur in the file exactly once."""


def copy_product(source: Path, home: Path, edits: Sequence[Sequence[str]]) -> Path:
    """Copy the product with these changes. Unchanged files are linked, with their compiled code.

    Half-written files of other processes that compile the product at this moment are left out.
    """
    copy = home / "src"
    shutil.copytree(source, copy, copy_function=os.link, ignore=shutil.ignore_patterns("*.pyc.*"))
    for file, old, new in edits:
        _change(copy / "endwell" / file, old, new)
    return copy


def _change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise DoesNotFit(f"{path.name} has this {text.count(old)} times, not once:\n{old}")
    path.unlink()  # a link: the product itself must not change
    path.write_text(text.replace(old, new), encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def serve_request(request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request in a child process."""
    with tempfile.TemporaryDirectory(prefix="planted") as directory:
        home = Path(directory)
        try:
            copy = copy_product(ROOT / "src", home, request["edits"])
        except (DoesNotFit, OSError) as error:
            return {"code": BROKEN, "said": str(error)}
        child = os.fork()
        if child == 0:
            _be_the_child(copy, home, request["tests"], bool(request["edits"]))
        code = _ended(child, request["seconds"])
        return {"code": code, "said": (home / "said").read_text(errors="replace")[-6000:]}


def _be_the_child(copy: Path, home: Path, tests: list[str], is_changed: bool) -> None:
    code = BROKEN
    try:
        os.setsid()
        said = os.open(home / "said", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(said, 1)
        os.dup2(said, 2)
        code = _run(copy, home, tests, is_changed)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _run(copy: Path, home: Path, tests: list[str], is_changed: bool) -> int:
    pytest = importlib.import_module("pytest")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(copy))
    os.environ["PYTHONPATH"] = str(copy)
    os.environ.pop("ENDWELL_TEST_TALLY", None)  # what a changed product survives does not count
    if is_changed:
        os.environ["ENDWELL_TEST_PATIENCE"] = PATIENCE_SECONDS
    os.chdir(ROOT)
    code = int(pytest.main([*tests, *OPTIONS, f"--basetemp={home / 'tmp'}"]))
    product = importlib.import_module("endwell")
    return code if str(product.__file__).startswith(str(copy)) else BROKEN


def _ended(child: int, seconds: float) -> int:
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            _end_group(child)
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    _end_group(child)
    os.waitpid(child, 0)
    return LATE


def _end_group(leader: int) -> None:
    """Kill the child with every process that its tests have started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def main() -> None:
    for name in OTHERS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        answer = serve_request(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
