"""Seeds for random tests: half of them are fixed, the others follow from the source of the product."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[1] / "src"


@cache
def source_digest() -> bytes:
    """Hash the source of the product."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix in (".py", ".sql"):
            digest.update(path.read_bytes())
    return digest.digest()


def seeds(count: int) -> tuple[int, ...]:
    """Choose seeds; the second half changes whenever the product does."""
    fixed = tuple(range(1, count - count // 2 + 1))
    derived = (hashlib.sha256(source_digest() + b"%d" % number).digest() for number in range(count // 2))
    return (*fixed, *(int.from_bytes(one[:4], "big") for one in derived))
