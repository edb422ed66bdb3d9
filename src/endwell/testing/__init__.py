"""Virtual time for tests: a world in which users try their agents, and the simulator with its oracle."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from endwell.testing.effect_sink import Outside
    from endwell.testing.scripts import ScriptedModel, ScriptedTool
    from endwell.testing.world import World, WorldHandle, every_crash

__all__ = ["Outside", "ScriptedModel", "ScriptedTool", "World", "WorldHandle", "every_crash"]

_HOMES = {
    "Outside": "endwell.testing.effect_sink",
    "ScriptedModel": "endwell.testing.scripts",
    "ScriptedTool": "endwell.testing.scripts",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'endwell.testing' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "endwell.testing.world")), name)
