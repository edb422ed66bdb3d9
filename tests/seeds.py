"""Seeds for random tests: half of them are always the same, the others follow from the product's own text."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[1] / "src"


@cache
def source_digest() -> bytes:
    """Of the whole text of the product."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix in (".py", ".sql"):
            digest.update(path.read_bytes())
    return digest.digest()


def seeds(count: int) -> tuple[int, ...]:
    """So many seeds; what the second half tries changes whenever the product does."""
    fixed = tuple(range(1, count - count // 2 + 1))
    derived = (hashlib.sha256(source_digest() + b"%d" % number).digest() for number in range(count // 2))
    return (*fixed, *(int.from_bytes(one[:4], "big") for one in derived))
