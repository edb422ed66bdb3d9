"""What PostgreSQL's errors mean: the connection is lost, another transaction was first, the data is refused.

They are told apart by SQLSTATE, so asyncpg need not be imported. No message names a password.
"""

from __future__ import annotations

from typing import Final

from endwell.errors import EndwellError, StoreError
from endwell.settings import mask_url

_LOST: Final = ("08", "57P01", "57P02", "57P03", "57P05", "25P03", "53300")
_CONFLICT: Final = ("40001", "40P01")
_BUSY: Final = ("55P03", "57014")
_LOST_RACE: Final = ("EW001",)  # raised by our own function: migration 0016
_RACE: Final = ("23505", "23P01", *_LOST_RACE)
_REFUSED: Final = ("22", "23")


def is_lost(error: BaseException) -> bool:
    """Whether the connection is lost, or none can be made now."""
    if isinstance(error, (OSError, TimeoutError, EOFError)):
        return True
    return _is_unusable(error) or _has_state(error, _LOST)


def _is_unusable(error: BaseException) -> bool:
    """Whether asyncpg itself cannot use the connection any more; such an error has no SQLSTATE.

    An `InternalClientError` is what the next call gets when a FATAL message came while the connection was
    idle, as in an orderly restart, and the server's end of it was not closed yet.
    """
    kind, text = type(error).__name__, str(error)
    if kind == "InterfaceError":
        return "clos" in text or "another operation" in text
    return kind == "InternalClientError"


def is_starting(error: BaseException) -> bool:
    """Whether the server is there and not ready yet."""
    return _has_state(error, ("57P03",))


def is_conflict(error: BaseException) -> bool:
    """Whether it is a serialization failure or a deadlock."""
    return _has_state(error, _CONFLICT)


def is_busy(error: BaseException) -> bool:
    """Whether another transaction held a lock for longer than we wait."""
    return _has_state(error, _BUSY)


def is_race(error: BaseException) -> bool:
    """Whether another transaction was first, as a unique index or the version guard says."""
    return _has_state(error, _RACE)


def is_refused(error: BaseException) -> bool:
    """Whether the database will never take this data, or asyncpg cannot encode it."""
    return _has_state(error, _REFUSED) or isinstance(error, (ValueError, TypeError, OverflowError))


def fails_alone(error: BaseException) -> bool:
    """Whether one command of a batch may be the reason, so that the others are tried without it."""
    return is_refused(error) or is_busy(error) or is_conflict(error) or is_race(error)


def _has_state(error: BaseException, states: tuple[str, ...]) -> bool:
    state = getattr(error, "sqlstate", None)
    return isinstance(state, str) and state.startswith(states)


_MEANINGS: Final[tuple[tuple[tuple[str, ...], str, str, str], ...]] = (
    (("53100",), "store_full", "the server's disk is full", "free some space; Endwell then continues"),
    (("25006",), "store_read_only", "the server takes no writes", "name the primary server, not a replica"),
    (("XX001", "XX002"), "store_corrupt", "the database is damaged", "restore it from a backup"),
    (("58030",), "store_io_error", "the server could not read or write", "check its disk"),
    (("28",), "store_unreachable", "the server refused the login", "check user and password"),
    (("3D000",), "store_unreachable", "there is no such database", "create it, or check the URL"),
    (("42501",), "store_unreachable", "the role may not use the store", "let it create and use tables"),
    (("53300",), "store_unreachable", "the server has no free connection", "raise max_connections"),
    (
        _CONFLICT + _BUSY + _LOST_RACE,
        "store_busy",
        "other transactions held the rows for too long",
        "try again; is a process stopped in a transaction?",
    ),
)


def _is_pooler(error: BaseException) -> bool:
    """Whether a pooler rejected a startup parameter, or lost a prepared statement to another connection."""
    return "unsupported startup parameter" in str(error) or _has_state(error, ("26000", "42P05"))


def text_of(error: BaseException) -> str:
    """Return the error's text; its type, where it has none."""
    return str(error) or type(error).__name__


def meaning_of(error: BaseException, url: str) -> EndwellError:
    """Return our error for one of PostgreSQL's, with a code and a hint."""
    if isinstance(error, EndwellError):
        return error
    for states, code, what, hint in _MEANINGS:
        if _has_state(error, states):
            return StoreError(f"{mask_url(url)}: {what} ({error})", code=code, hint=hint)
    if _is_pooler(error):
        text = str(error).partition("\n")[0]
        return StoreError(
            f"{mask_url(url)}: a connection pooler answers, which Endwell cannot work through ({text})",
            code="store_unsuitable",
            hint="name the PostgreSQL server itself; Endwell keeps few connections",
        )
    if is_lost(error):
        return StoreError(
            f"{mask_url(url)}: the server cannot be reached ({text_of(error)})", hint="is it running?"
        )
    if hasattr(error, "sqlstate"):
        return StoreError(f"{mask_url(url)}: {error}", code="store_error")
    return EndwellError(f"{type(error).__name__}: {error}")
