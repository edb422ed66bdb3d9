"""Where an app is defined, so that another process can load it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypedDict

from endwell.errors import UsageError

MAIN: Final = "__endwell_main__"
"""The name under which a child loads the script that its worker was started with."""
_HINT: Final = "keep the app in a variable of a module or script: app = Endwell(…)"


class AppPlace(TypedDict):
    """A module by its name, or a script by its file."""

    module: str | None
    file: str | None


class AppLocation(TypedDict):
    """The app is `variable` of the first place; the second is where the agent's function is."""

    places: list[AppPlace]
    variable: str


def location_of(app: object, function: Callable[..., Any], agent: str) -> AppLocation:
    """Where another process finds the app; `UsageError` when only this process has it."""
    if MAIN in sys.modules:
        problem = f"a worker was started while the script was loaded for agent {agent!r}"
        raise UsageError(problem, hint='start it under: if __name__ == "__main__":')
    own = getattr(function, "__module__", None) or "__main__"
    for module in [own, *sys.modules]:
        for variable in _variables_holding(module, app):
            places = [_place_of(module, agent), _place_of(own, agent)]
            return AppLocation(places=places, variable=variable)
    raise UsageError(f"another process cannot find the app of agent {agent!r}", hint=_HINT)


def load_app(location: AppLocation) -> Any:
    modules = [_load_module(place) for place in location["places"]]
    return getattr(modules[0], location["variable"])


def _variables_holding(module: str, app: object) -> Iterator[str]:
    for name, value in list(getattr(sys.modules.get(module), "__dict__", {}).items()):
        if value is app and isinstance(name, str):
            yield name


def _place_of(module: str, agent: str) -> AppPlace:
    if module != "__main__":
        return AppPlace(module=module, file=None)
    main = sys.modules["__main__"]
    if (spec := getattr(main, "__spec__", None)) is not None:  # python -m
        return AppPlace(module=spec.name, file=None)
    file = getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():
        problem = f"agent {agent!r} was defined interactively, where another process cannot find it"
        raise UsageError(problem, hint="write it to a file and start that")
    return AppPlace(module=None, file=str(Path(file).resolve()))


def _load_module(place: AppPlace) -> ModuleType:
    if place["module"] is not None:
        return importlib.import_module(place["module"])
    if MAIN in sys.modules:
        return sys.modules[MAIN]
    spec = importlib.util.spec_from_file_location(MAIN, place["file"] or "")
    if spec is None or spec.loader is None:
        raise ImportError(f"{place['file']} is not a Python file")
    sys.modules[MAIN] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
