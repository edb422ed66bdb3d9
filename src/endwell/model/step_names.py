"""What the record of a step is called outside. In the log it is one fact; there it stands for several."""

from __future__ import annotations

from typing import Final

_COMMITTED: Final[dict[str, tuple[str, ...]]] = {
    "success": ("command_committed",),
    "pure": ("command_committed",),
    "side_effect_committed": ("tool_invocation_finished", "command_committed"),
}
"""Of a completed step, besides `node_finished`; a failed one commits nothing."""


def is_completed(result_type: str) -> bool:
    """Whether a step with this result is never run again."""
    return result_type in _COMMITTED


def names_of(result_type: str) -> tuple[str, ...]:
    """In the order in which they took place."""
    return (*_COMMITTED.get(result_type, ()), "node_finished")
