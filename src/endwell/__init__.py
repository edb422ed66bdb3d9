"""Endwell: every agent task ends, and no side effect happens twice."""

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
