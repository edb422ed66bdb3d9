"""The kinds of values: each reads a raw value, or says with a ValueError what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

from endwell.errors import BadInput
from endwell.model.names import person_name

SHORTEST_SECONDS = 0.05
LONGEST_SECONDS = 100 * 365.25 * 86400
"""A century; far below what a 64-bit count of microseconds holds."""


def _read_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, not {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    if number > LONGEST_SECONDS:
        raise ValueError(f"{value} is too large")
    return number


def _read_seconds(value: object) -> float:
    number = _read_number(value)
    if number < SHORTEST_SECONDS:
        raise ValueError(f"must be at least {SHORTEST_SECONDS} seconds, not {value}")
    return number


def _seconds_or_off(value: object) -> float:
    number = _read_number(value)
    if 0 < number < SHORTEST_SECONDS:
        raise ValueError(f"must be at least {SHORTEST_SECONDS} seconds, or 0 to switch it off, not {value}")
    return max(0.0, number)


def _read_ratio(value: object) -> float:
    if not 0 <= (number := _read_number(value)) <= 1:
        raise ValueError(f"must lie between 0 and 1, not {value}")
    return number


def _read_multiplier(value: object) -> float:
    if (number := _read_number(value)) < 1:
        raise ValueError(f"must be at least 1, not {value}")
    return number


def _read_delays(value: object) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise ValueError(f"must be a list of seconds, not {value!r}")
    delays = tuple(_read_number(item) for item in value)
    if any(delay < 0 for delay in delays):
        raise ValueError("must not contain a negative delay")
    return delays


def _whole_reader(least: int) -> Callable[[object], int]:
    def read_whole(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, not {value!r}")
        if not least <= value <= 1_000_000:
            raise ValueError(f"must lie between {least} and 1000000, not {value}")
        return value

    return read_whole


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        # Without the value: it may hold a URL with its password.
        raise ValueError(f"must be text, not {type(value).__name__}")
    return value


def _read_person(value: object) -> str:
    name = _read_text(value)
    try:
        return person_name(name) if name else ""
    except BadInput:
        raise ValueError("must be the name of a person: printable text without commas") from None


def _read_texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
        raise ValueError("must be a list of texts")
    return tuple(item.strip() for item in value)


def _read_people(value: object) -> tuple[str, ...]:
    return tuple(map(_read_person, _read_texts(value)))


def _one_of(*words: str) -> Callable[[object], str]:
    def one_of(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"must be one of {', '.join(filter(None, words))}, not {value!r}")
        return value

    return one_of


def _some_of(*words: str) -> Callable[[object], tuple[str, ...]]:
    def some_of(value: object) -> tuple[str, ...]:
        found = _read_texts(value)
        if unknown := [item for item in found if item not in words]:
            raise ValueError(f"may contain {', '.join(words)}, not {unknown[0]!r}")
        return found

    return some_of


# The type of the value, and the function that reads it.
Seconds = Annotated[float, _read_seconds]
SecondsOrOff = Annotated[float, _seconds_or_off]
Ratio = Annotated[float, _read_ratio]
Multiplier = Annotated[float, _read_multiplier]
Delays = Annotated[tuple[float, ...], _read_delays]
Count = Annotated[int, _whole_reader(1)]
CountOrNone = Annotated[int, _whole_reader(0)]
Text = Annotated[str, _read_text]
Person = Annotated[str, _read_person]
People = Annotated[tuple[str, ...], _read_people]
Texts = Annotated[tuple[str, ...], _read_texts]
RelayKind = Annotated[str, _one_of("", "webhook", "nats", "jetstream", "redis", "redis_stream")]
RelayStart = Annotated[str, _one_of("beginning", "now")]
RelayEvents = Annotated[tuple[str, ...], _some_of("state", "task", "step")]
DoorbellKind = Annotated[str, _one_of("auto", "store", "redis", "nats")]
LoopAction = Annotated[str, _one_of("stop", "nudge")]
QueueKind = Annotated[str, _one_of("native", "redis")]
