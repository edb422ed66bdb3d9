"""Endwell: every agent task ends, and no stale worker changes anything.

Names are imported when they are first used, so that the command line starts at once.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing `typing` takes longer than everything here

if TYPE_CHECKING:
    from typing import Any

    from endwell.app import Endwell
    from endwell.client import AsyncHandle, Client, Handle
    from endwell.errors import (
        AmbiguousStep,
        ApprovalExpired,
        ApprovalRejected,
        BadInput,
        BadSetting,
        CallFailed,
        EffectRejected,
        EndwellError,
        Fail,
        IdempotencyConflict,
        NotDone,
        NotFound,
        Refused,
        ReplayMismatch,
        Retry,
        SignalTimeout,
        StaleAttempt,
        StepFailed,
        StepTimeout,
        StoreError,
        TaskCancelled,
        TaskEnded,
        TaskFailed,
        TaskNotSucceeded,
        TaskTimedOut,
        ToolFailed,
        ToolTimeout,
        TurnError,
        UnknownAgent,
        UsageError,
        VersionMismatch,
        WaitTimedOut,
        WrongStatus,
    )
    from endwell.policy.approval import Approval
    from endwell.store.effect_store import EffectStore, MemoryEffectStore
    from endwell.store.postgres.effect_store import PostgresEffectStore
    from endwell.store.sqlite.effect_store import SqliteEffectStore
    from endwell.turn.context import Context, SyncContext
    from endwell.turn.effect_call import effect_key
    from endwell.turn.effect_verdict import CANNOT_TELL, NOT_DONE, Done
    from endwell.turn.wait_results import Approved

__version__ = "0.1.0"

__all__ = [
    "CANNOT_TELL",
    "NOT_DONE",
    "AmbiguousStep",
    "Approval",
    "ApprovalExpired",
    "ApprovalRejected",
    "Approved",
    "AsyncHandle",
    "BadInput",
    "BadSetting",
    "CallFailed",
    "Client",
    "Context",
    "Done",
    "EffectRejected",
    "EffectStore",
    "Endwell",
    "EndwellError",
    "Fail",
    "Handle",
    "IdempotencyConflict",
    "MemoryEffectStore",
    "NotDone",
    "NotFound",
    "PostgresEffectStore",
    "Refused",
    "ReplayMismatch",
    "Retry",
    "SignalTimeout",
    "SqliteEffectStore",
    "StaleAttempt",
    "StepFailed",
    "StepTimeout",
    "StoreError",
    "SyncContext",
    "TaskCancelled",
    "TaskEnded",
    "TaskFailed",
    "TaskNotSucceeded",
    "TaskTimedOut",
    "ToolFailed",
    "ToolTimeout",
    "TurnError",
    "UnknownAgent",
    "UsageError",
    "VersionMismatch",
    "WaitTimedOut",
    "WrongStatus",
    "effect_key",
]

_HOMES = {
    "Endwell": "endwell.app",
    "AsyncHandle": "endwell.client",
    "Client": "endwell.client",
    "Handle": "endwell.client",
    "Approval": "endwell.policy.approval",
    "Approved": "endwell.turn.wait_results",
    "Context": "endwell.turn.context",
    "SyncContext": "endwell.turn.context",
    "EffectStore": "endwell.store.effect_store",
    "MemoryEffectStore": "endwell.store.effect_store",
    "PostgresEffectStore": "endwell.store.postgres.effect_store",
    "SqliteEffectStore": "endwell.store.sqlite.effect_store",
    "CANNOT_TELL": "endwell.turn.effect_verdict",
    "Done": "endwell.turn.effect_verdict",
    "NOT_DONE": "endwell.turn.effect_verdict",
    "effect_key": "endwell.turn.effect_call",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'endwell' has no attribute {name!r}")
    found = getattr(import_module(_HOMES.get(name, "endwell.errors")), name)
    globals()[name] = found
    return found
