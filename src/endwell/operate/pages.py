"""Pages of lists: the items, and a cursor that leads to the next page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from endwell.errors import BadInput

Row = TypeVar("Row")


def page_of(
    found: Sequence[Row], limit: int, shape: Callable[[Row], Any], cursor_of: Callable[[Row], str]
) -> dict[str, Any]:
    """A page, from at most one row more than it shows."""
    cursor = cursor_of(found[limit - 1]) if len(found) > limit else None
    return {"items": [shape(row) for row in found[:limit]], "next": cursor}


def bad_cursor() -> BadInput:
    """The error for a cursor that no page has given."""
    return BadInput(
        "no page of this list has given this cursor",
        code="bad_cursor",
        field="cursor",
        hint="give the `next` of the previous page",
    )
