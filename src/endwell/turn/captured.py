"""How something ended, as a value."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

Ended = tuple[Any, BaseException | None]


async def captured(thing: Awaitable[Any]) -> Ended:
    """How it ended, as a value: a loop must not see SystemExit, nor a sibling an exception."""
    try:
        return await thing, None
    except BaseException as error:
        return None, error
