"""Open the installation of a command: the app in the user's code, or the store alone."""

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
from endwell.cli.base.output import show
from endwell.errors import EndwellError, StoreError, UsageError
from endwell.model import names
from endwell.runtime.loops import new_loop
from endwell.settings import Settings, load, override
from endwell.settings.store_url import sqlite_path

T = TypeVar("T")
_HINT = "name it with --app MODULE:NAME, or as target under [app] in endwell.toml"


def settings_of(options: Options) -> Settings:
    """The settings of this directory and environment, and of `--store`."""
    settings = load(os.environ, Path.cwd())
    return override(settings, {"store": options.store}, source="--store") if options.store else settings


def with_node(options: Options, ask: Callable[[Node], Awaitable[T]], *, may_be_new: bool = False) -> T:
    """Open the store, ask, and close it. Only commands that write tasks make a new store."""
    app = open_installation(options)
    if not may_be_new:
        _refuse_if_missing(app.url)

    async def ask_node() -> T:
        async with app.connect() as node:
            return await ask(node)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(ask_node())


def show_answer(
    options: Options,
    ask: Callable[[Node], Awaitable[T]],
    text: Callable[[T], str],
    *,
    may_be_new: bool = False,
) -> T:
    """Ask the store, and show the answer as JSON or as this text."""
    answer = with_node(options, ask, may_be_new=may_be_new)
    show(options, answer, text)
    return answer


def _refuse_if_missing(url: str) -> None:
    """Opening a missing SQLite file would make a new, empty store, not the intended one."""
    path = sqlite_path(url) if url.startswith("sqlite:") else None
    if path is not None and path.parent.exists() and not path.exists():
        raise StoreError(
            f"there is no store at {path}",
            code="store_missing",
            hint="check the path; starting a worker or submitting a task makes a new store",
        )


def open_installation(options: Options) -> Endwell:
    """The installation that most commands need. The app is loaded only if it is named, or has the URL."""
    settings = settings_of(options)
    if options.app or (settings.source("store") == "default" and _may_have_url(settings)):
        return required_app(options)
    return Endwell(settings=settings, namespace=options.namespace or "default")


def required_app(options: Options) -> Endwell:
    """The app in the user's code, with the store and namespace of the command line."""
    settings = settings_of(options)
    app = load_app(options.app or settings.app.target)
    if options.store:
        other = Endwell(settings=override(app.settings, {"store": options.store}, source="--store"))
        app.settings, app.url = other.settings, other.url
    if options.namespace:
        app.namespace = names.namespace_name(options.namespace)
    return app


def _may_have_url(settings: Settings) -> bool:
    """Whether a target is named, or an app.py here uses Endwell."""
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
    module = _import_module(module_name)
    found = getattr(module, name, None)
    if isinstance(found, Endwell):
        return found
    apps = [key for key, value in vars(module).items() if isinstance(value, Endwell)]
    what = "is not an Endwell object" if hasattr(module, name) else "does not exist"
    hint = f"did you mean {module_name}:{apps[0]}?" if apps else _HINT
    raise UsageError(f"{name} in module {module_name} {what}", hint=hint, field="app")


def _import_module(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for the answer
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_error(name, error) from error
        raise UsageError(f"there is no module {name} in {here}", hint=_HINT, field="app") from error
    except EndwellError:
        raise  # its message says what is wrong
    except (Exception, SystemExit) as error:
        raise _import_error(name, error) from error


def _import_error(name: str, error: BaseException) -> UsageError:
    return UsageError(
        f"importing {name} failed: {type(error).__name__}: {error}",
        hint="--debug shows where",
        field="app",
    )


async def all_namespaces(node: Node, options: Options) -> list[str]:
    """The namespace of the command line, or all in the store."""
    if options.namespace:
        return [options.namespace]
    return sorted({*await node.store.known_namespaces(), node.app.namespace})
