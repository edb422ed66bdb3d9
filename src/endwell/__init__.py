"""Endwell: every agent task ends, and no stale worker changes anything.

Names are imported when they are first used, so that the command line starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from endwell.app import Endwell
    from endwell.client import AsyncHandle, Client, Handle
    from endwell.errors import (
        BadInput,
        BadSetting,
        EndwellError,
        Fail,
        IdempotencyConflict,
        NotFound,
        Refused,
        Retry,
        StaleAttempt,
        StoreError,
        TaskCancelled,
        TaskEnded,
        TaskFailed,
        TaskNotSucceeded,
        TaskTimedOut,
        UnknownAgent,
        UsageError,
        WaitTimedOut,
        WrongStatus,
    )
    from endwell.worker.context import Context, SyncContext

__version__ = "0.1.0"

__all__ = [
    "AsyncHandle",
    "BadInput",
    "BadSetting",
    "Client",
    "Context",
    "Endwell",
    "EndwellError",
    "Fail",
    "Handle",
    "IdempotencyConflict",
    "NotFound",
    "Refused",
    "Retry",
    "StaleAttempt",
    "StoreError",
    "SyncContext",
    "TaskCancelled",
    "TaskEnded",
    "TaskFailed",
    "TaskNotSucceeded",
    "TaskTimedOut",
    "UnknownAgent",
    "UsageError",
    "WaitTimedOut",
    "WrongStatus",
]

_HOMES = {
    "Endwell": "endwell.app",
    "AsyncHandle": "endwell.client",
    "Client": "endwell.client",
    "Handle": "endwell.client",
    "Context": "endwell.worker.context",
    "SyncContext": "endwell.worker.context",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'endwell' has no attribute {name!r}")
    found = getattr(import_module(_HOMES.get(name, "endwell.errors")), name)
    globals()[name] = found
    return found
