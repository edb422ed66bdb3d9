"""How a broken rule is said."""

from __future__ import annotations


class Violation(AssertionError):
    """Something that must always hold does not."""


def must(holds: bool, what: str) -> None:
    """Say so if it does not."""
    if not holds:
        raise Violation(what)
