"""What a registration may say of an agent or tool, checked where it is said."""

from __future__ import annotations

from endwell.errors import UsageError
from endwell.policy.limits import SECOND
from endwell.policy.submitting import SHORTEST_DEADLINE_SECONDS, Seconds, microseconds
from endwell.turn.agents import OnVersionChange


def checked_concurrency(name: str, concurrency: int | None) -> int | None:
    """How many at once in the whole installation; None is no limit."""
    is_count = isinstance(concurrency, int) and not isinstance(concurrency, bool)
    if concurrency is not None and not (is_count and 1 <= concurrency <= 10_000):
        raise UsageError(f"agent {name!r}: concurrency must be a whole number between 1 and 10,000")
    return concurrency


def checked_version_change(name: str, given: OnVersionChange) -> OnVersionChange:
    """What becomes of steps that another version has recorded."""
    if given not in ("continue", "refuse"):
        raise UsageError(f'agent {name!r}: on_version_change must be "continue" or "refuse"')
    return given


def seconds(value: Seconds | None, field: str) -> float | None:
    """A timeout as it is kept with a tool."""
    checked = microseconds(value, field, least=SHORTEST_DEADLINE_SECONDS)
    return None if checked is None else checked / SECOND


def checked_exceptions(name: str, given: object) -> tuple[type[BaseException], ...]:
    """The exceptions that end a task without a retry."""
    kinds = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise UsageError(f"agent {name!r}: give_up_on must be an exception class, or a tuple of them")
    return kinds
