"""New ids: 26 characters that sort by the time they were made, and never repeat (ULIDs).

48 bits of milliseconds and 80 random bits, in lowercase Crockford base32. The random bits are drawn once per
millisecond and counted up from there, which keeps the ids of one process strictly rising and cheap. They are
names, not secrets: one id is enough to guess its neighbours.
"""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from endwell.runtime.clock import Clock

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_RANDOM_BITS = 80
# The low bits are encoded for every id; the bits above them change about once per millisecond.
_LOW_BITS = 20


class Ids(Protocol):
    """The source of new ids, and of random fractions for jitter."""

    def new(self) -> str: ...

    def fraction(self) -> float: ...


class SystemIds:
    """Ids by the given clock and the operating system's randomness; safe across threads and forks."""

    def __init__(self, clock: Clock) -> None:
        self._sequence = _Sequence(_in_milliseconds(clock), _draw_bits)
        self._random = random.Random(os.urandom(16))
        _start_over_after_fork(self)

    def new(self) -> str:
        return self._sequence.next()

    def fraction(self) -> float:
        return self._random.random()

    def start_over(self) -> None:
        """Draw again in a forked child, which would otherwise repeat the ids of its parent."""
        self._sequence.start_over()
        self._random = random.Random(os.urandom(16))


class SeededIds:
    """Equal ids and fractions for equal seeds. Without a clock each id is a millisecond later."""

    def __init__(self, seed: int, clock: Clock | None = None) -> None:
        self._random = random.Random(seed)
        self._ticks = 0
        self._sequence = _Sequence(self._tick if clock is None else _in_milliseconds(clock), self._draw_bits)

    def new(self) -> str:
        return self._sequence.next()

    def fraction(self) -> float:
        return self._random.random()

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks

    def _draw_bits(self) -> int:
        return self._random.getrandbits(_RANDOM_BITS - 1)


class _Sequence:
    """Rising 128-bit numbers as text, also while the clock stands still or runs back."""

    def __init__(self, now_ms: Callable[[], int], draw_bits: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._draw_bits = draw_bits
        self._last_ms = 0
        self._high = -1
        self._prefix = ""
        self.start_over()

    def start_over(self) -> None:
        # A new lock: in a forked child the old one may be held by a thread that does not exist there.
        self._lock = threading.Lock()
        # A later millisecond: new random bits within the same one could be lower than the last id.
        self._begin(self._last_ms + 1)

    def next(self) -> str:
        with self._lock:
            now_ms = self._now_ms()
            if now_ms > self._last_ms:
                self._begin(now_ms)
            else:
                self._value += 1
            return self._encode(self._value)

    def _begin(self, now_ms: int) -> None:
        self._last_ms = now_ms
        self._value = (now_ms << _RANDOM_BITS) | self._draw_bits()

    def _encode(self, value: int) -> str:
        high = value >> _LOW_BITS
        if high != self._high:
            self._high = high
            self._prefix = "".join([_PAIRS[high >> shift & 1023] for shift in range(100, -1, -10)])
        pairs = _PAIRS
        return f"{self._prefix}{pairs[value >> 10 & 1023]}{pairs[value & 1023]}"


def _draw_bits() -> int:
    """Draw random bits; the top one stays clear, since counting up must not carry into the milliseconds."""
    return int.from_bytes(os.urandom(_RANDOM_BITS // 8)) >> 1


def _in_milliseconds(clock: Clock) -> Callable[[], int]:
    return lambda: clock.now_us() // 1000


def _start_over_after_fork(ids: SystemIds) -> None:
    # The hook can never be taken back, so it must not keep the ids alive.
    reference = weakref.ref(ids)

    def start_over() -> None:
        if (living := reference()) is not None:
            living.start_over()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=start_over)
