"""Moments: microseconds since 1970, and their text for people and programs (RFC 3339, in UTC)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, overload

SECOND: Final = 1_000_000
"""Microseconds in a second."""
_FIRST: Final = -62_135_596_800_000_000
_LAST: Final = 253_402_300_799_999_999
"""The years 1 to 9999, in microseconds since 1970."""


@overload
def moment(at: int) -> str: ...


@overload
def moment(at: None) -> None: ...


@overload
def moment(at: int | None) -> str | None: ...


def moment(at: int | None) -> str | None:
    """Microseconds as RFC 3339; a moment outside the calendar becomes the nearest one inside."""
    if at is None:
        return None
    at = max(_FIRST, min(at, _LAST))
    text = datetime.fromtimestamp(at // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{at % SECOND:06d}Z"
