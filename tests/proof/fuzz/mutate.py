"""Inputs: valid ones, mutations of valid ones, and noise. All of them follow from the dice."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

Maker = Callable[[Random], bytes]

_SCALAR: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null')
_TOKENS: Final = (
    *(b'""', b"{}", b"[]", b"null", b"true", b"NaN", b"-Infinity", b"-0.0", b"1e400", b"0x1f", b"-", b"="),
    *(b'"', b"'", b"\\", b"\\u0000", b"\\ud800", b"\\u2028", b"/", b"..", b"%", b"%s", b"$", b"@", b"#"),
    *(b"\0", b"\n", b"\r\n", b"\x1b[31m", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf0\x9f\x92\xa9"),
    *(b"9" * 19, b"9" * 30, b"9" * 5000, b"-9223372036854775809", b"1.7976931348623157e308", b"\xd9\xa3"),
    *(b"[" * 70, b'{"a":' * 70, b"[" * 20_000, b"]" * 70, b"a" * 300, b",", b":", b" ", b"\t", b"[x]"),
    *(b'{"a":1,"a":2}', b'{"lc":1}', b"!!python/object", b"2026-01-01T00:00:00Z", b"default", b"task."),
    *(b"__class__", b"1_000", b"\xef\xbb\xbf"),
)
_LETTERS: Final = bytes(range(256))
_VALUES: Final = (
    *(b'""', b"{}", b"[]", b"null", b"true", b"false", b"0", b"-1", b"1.5", b"1e999", b'"2026-01-01"'),
    *(b'"x"', b'"\\u0000"', b'"\\ud83d"', b"[[]]", b'{"a":{"b":[1,2]}}', b"9223372036854775807", b"9" * 20),
    *(b"[" * 20_000, b"9" * 5_000),
)


def make_noise(dice: Random) -> bytes:
    """Make random bytes, or random pieces of what a decoder knows."""
    if dice.random() < 0.4:
        return dice.randbytes(dice.randrange(1, 40))
    return b"".join(dice.choice(_TOKENS) for _ in range(dice.randrange(1, 6)))


def mutate_input(data: bytes, dice: Random, others: Maker) -> bytes:
    """Change one to three things in an input."""
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        data = dice.choice(_CHANGES)(data, dice, others)
    return data


def json_value(dice: Random, depth: int = 3) -> bytes:
    """Make some JSON of a few levels."""
    pick = dice.random()
    if depth and pick < 0.3:
        return b"[" + b",".join(json_value(dice, depth - 1) for _ in range(dice.randrange(4))) + b"]"
    if depth and pick < 0.7:
        names = dice.sample(_NAMES, dice.randrange(4))
        return b"{" + b",".join(b'"%s":%s' % (name, json_value(dice, depth - 1)) for name in names) + b"}"
    return dice.choice(_PLAIN)(dice)


def one_of(valid: Sequence[bytes]) -> Maker:
    """Choose one of these inputs."""
    return lambda dice: dice.choice(valid)


_NAMES: Final = [b"id", b"items", b"a", b"b", b"price", b"\xc3\xbc", b"with space", b"x.y"]
_PLAIN: Final[tuple[Maker, ...]] = (
    lambda dice: b"%d" % dice.randrange(-(2**63), 2**63),
    lambda dice: b"%d" % dice.randrange(100),
    lambda dice: repr(dice.uniform(-1e6, 1e6)).encode(),
    lambda dice: b'"%s"' % bytes(dice.choices(b"abc xyz/-0189", k=dice.randrange(12))),
    lambda dice: dice.choice((b"true", b"false", b"null", b'"\\n\\u00fc"', b'"\xe2\x82\xac"')),
)


def _changed_byte(data: bytes, dice: Random, others: Maker) -> bytes:
    if not data:
        return dice.choice(_TOKENS)
    place = dice.randrange(len(data))
    return data[:place] + bytes((dice.choice(_LETTERS),)) + data[place + 1 :]


def _left_out(data: bytes, dice: Random, others: Maker) -> bytes:
    start = dice.randrange(len(data) + 1)
    return data[:start] + data[start + dice.randrange(1, 8) :]


def _doubled(data: bytes, dice: Random, others: Maker) -> bytes:
    start = dice.randrange(len(data) + 1)
    end = start + dice.randrange(1, 20)
    return data[:end] + data[start:end] + data[end:]


def _put_in(data: bytes, dice: Random, others: Maker) -> bytes:
    place = dice.randrange(len(data) + 1)
    return data[:place] + dice.choice(_TOKENS) + data[place:]


def _cut_off(data: bytes, dice: Random, others: Maker) -> bytes:
    return data[: dice.randrange(len(data) + 1)]


def _joined(data: bytes, dice: Random, others: Maker) -> bytes:
    other = others(dice)
    return data[: dice.randrange(len(data) + 1)] + other[dice.randrange(len(other) + 1) :]


def _other_value(data: bytes, dice: Random, others: Maker) -> bytes:
    """Replace one JSON value by another."""
    found = list(_SCALAR.finditer(data))
    if not found:
        return _put_in(data, dice, others)
    place = dice.choice(found)
    return data[: place.start()] + dice.choice(_VALUES) + data[place.end() :]


_CHANGES: Final = (
    *(_changed_byte, _left_out, _doubled, _put_in, _cut_off, _joined),
    *(_other_value, _other_value, _other_value, _other_value),
)
