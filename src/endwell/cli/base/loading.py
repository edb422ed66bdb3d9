"""Which installation a command speaks to: the app in the user's code, or what the store alone tells."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from endwell.app import Endwell, Node
from endwell.cli.base.options import Options
from endwell.errors import EndwellError, StoreError, UsageError
from endwell.model import names
from endwell.runtime.loops import new_loop
from endwell.settings import Settings, load, override
from endwell.settings.store_url import sqlite_path

T = TypeVar("T")
_HINT = "name it with --app MODULE:NAME, or as target under [app] in endwell.toml"


def settings_of(asked: Options) -> Settings:
    """The settings of this directory and environment, and of `--store`."""
    settings = load(os.environ, Path.cwd())
    return override(settings, {"store": asked.store}, source="--store") if asked.store else settings


def with_node(asked: Options, ask: Callable[[Node], Awaitable[T]], *, may_be_new: bool = False) -> T:
    """Open the store, ask, close it again. Only what puts something there may make a new one."""
    app = installation(asked)
    if not may_be_new:
        _refuse_if_missing(app.url)

    async def connected() -> T:
        async with app.connect() as node:
            return await ask(node)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(connected())


def _refuse_if_missing(url: str) -> None:
    """Opening would make a new, empty store, in which everything is fine: not the one that was meant."""
    path = sqlite_path(url) if url.startswith("sqlite:") else None
    if path is not None and path.parent.exists() and not path.exists():
        raise StoreError(
            f"there is no store at {path}",
            code="store_missing",
            hint="check the path; starting a worker or submitting a task makes a new store",
        )


def installation(asked: Options) -> Endwell:
    """What most commands need: a store. The app is loaded only if it was named, or knows the store."""
    settings = settings_of(asked)
    if asked.app or (settings.source("store") == "default" and _app_may_tell(settings)):
        return required_app(asked)
    return Endwell(settings=settings, namespace=asked.namespace or "default")


def required_app(asked: Options) -> Endwell:
    """The app in the user's code, as the command line wants it."""
    settings = settings_of(asked)
    app = load_app(asked.app or settings.app.target)
    if asked.store:
        said = Endwell(settings=override(app.settings, {"store": asked.store}, source="--store"))
        app.settings, app.url = said.settings, said.url
    if asked.namespace:
        app.namespace = names.namespace_name(asked.namespace)
    return app


def _app_may_tell(settings: Settings) -> bool:
    """A target that was named; or an app.py here, unless it is somebody else's."""
    if settings.source("app.target") != "default":
        return True
    with contextlib.suppress(OSError):
        return "endwell" in Path("app.py").read_text(encoding="utf-8", errors="replace")
    return False


def load_app(target: str) -> Endwell:
    """The Endwell object that `MODULE:NAME` names; the current directory is importable."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise UsageError(f"{target!r} does not name an app", hint="write it as MODULE:NAME", field="app")
    module = _imported(module_name)
    found = getattr(module, name, None)
    if isinstance(found, Endwell):
        return found
    there = [key for key, value in vars(module).items() if isinstance(value, Endwell)]
    what = "is not an Endwell object" if hasattr(module, name) else "is not there"
    hint = f"did you mean {module_name}:{there[0]}?" if there else _HINT
    raise UsageError(f"{name} in module {module_name} {what}", hint=hint, field="app")


def _imported(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for the answer
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from error
        raise UsageError(f"there is no module {name} in {here}", hint=_HINT, field="app") from error
    except EndwellError:
        raise  # it says by itself what is wrong: a setting, a name
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> UsageError:
    return UsageError(
        f"importing {name} failed: {type(error).__name__}: {error}",
        hint="--debug shows where",
        field="app",
    )
