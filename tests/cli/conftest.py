"""A directory with an app, a store with a few tasks in it, and ways to run commands there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from endwell import Endwell, TaskNotSucceeded
from endwell.cli.main import run
from tests.cli.shell import APP, Answer, Shell
from tests.patience import PATIENCE_SECONDS

Command = Callable[..., Answer]


class Stock(NamedTuple):
    """A store after some work: one task of each kind."""

    succeeded: str
    failed: str


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Real processes in a fresh directory."""
    return Shell(tmp_path)


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """The command line in this process, which is faster."""
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def call(*words: str) -> Answer:
        capsys.readouterr()
        code = run(words)
        out, err = capsys.readouterr()
        return Answer(code, out, err)

    yield call
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store that knows the agents of the app, and has no tasks."""
    with _app(tmp_path).running():
        return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def stock(store: str, tmp_path: Path) -> Stock:
    """The same with a succeeded task and a dead letter."""
    with _app(tmp_path).running() as app:
        good = app.submit("clerk", {"id": "42", "items": 2}, key="order-42")
        bad = app.submit("picky", {"value": -1, "notes": ["a", {"b": 1}]})
        assert good.result(PATIENCE_SECONDS) == 6
        with pytest.raises(TaskNotSucceeded):
            bad.result(PATIENCE_SECONDS)
        return Stock(good.id, bad.id)


def _app(directory: Path) -> Endwell:
    names: dict[str, object] = {"__name__": "app"}
    source = APP.replace("sqlite:///store.db", f"sqlite:///{directory}/store.db")
    exec(compile(source, "app.py", "exec", dont_inherit=True), names)  # noqa: S102 (our own app)
    app = names["app"]
    assert isinstance(app, Endwell)
    return app
