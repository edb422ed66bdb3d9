"""What a setting's value may be: each kind reads a raw value, or says what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

SHORTEST_SECONDS = 0.05
LONGEST_SECONDS = 100 * 365.25 * 86400
"""A century; far below what a 64-bit count of microseconds holds."""


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, not {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    if number > LONGEST_SECONDS:
        raise ValueError(f"{value} is too large")
    return number


def _seconds(value: object) -> float:
    number = _number(value)
    if number < SHORTEST_SECONDS:
        raise ValueError(f"must be at least {SHORTEST_SECONDS} seconds, not {value}")
    return number


def _seconds_or_off(value: object) -> float:
    number = _number(value)
    if 0 < number < SHORTEST_SECONDS:
        raise ValueError(f"must be at least {SHORTEST_SECONDS} seconds, or 0 to switch it off, not {value}")
    return max(0.0, number)


def _ratio(value: object) -> float:
    if not 0 <= (number := _number(value)) <= 1:
        raise ValueError(f"must lie between 0 and 1, not {value}")
    return number


def _multiplier(value: object) -> float:
    if (number := _number(value)) < 1:
        raise ValueError(f"must be at least 1, not {value}")
    return number


def _delays(value: object) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise ValueError(f"must be a list of seconds, not {value!r}")
    delays = tuple(_number(item) for item in value)
    if any(delay < 0 for delay in delays):
        raise ValueError("must not contain a negative delay")
    return delays


def _whole(least: int) -> Callable[[object], int]:
    def whole(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, not {value!r}")
        if not least <= value <= 1_000_000:
            raise ValueError(f"must lie between {least} and 1000000, not {value}")
        return value

    return whole


def _text(value: object) -> str:
    if not isinstance(value, str):
        # Without the value: it may hold a URL with its password.
        raise ValueError(f"must be text, not {type(value).__name__}")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
        raise ValueError("must be a list of texts")
    return tuple(item.strip() for item in value)


def _queue_kind(value: object) -> str:
    if value == "redis":
        raise ValueError('"redis" is not available in this release; leave it at "native"')
    if value != "native":
        raise ValueError(f'must be "native", not {value!r}')
    return "native"


# The second part reads a value of the type in the first, or says with a ValueError what is wrong with it.
Seconds = Annotated[float, _seconds]
SecondsOrOff = Annotated[float, _seconds_or_off]
Ratio = Annotated[float, _ratio]
Multiplier = Annotated[float, _multiplier]
Delays = Annotated[tuple[float, ...], _delays]
Count = Annotated[int, _whole(1)]
CountOrNone = Annotated[int, _whole(0)]
Text = Annotated[str, _text]
Texts = Annotated[tuple[str, ...], _texts]
QueueKind = Annotated[str, _queue_kind]
