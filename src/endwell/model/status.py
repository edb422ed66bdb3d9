"""The statuses of a task, and named sets of them."""

from __future__ import annotations

from typing import Final, Literal

Status = Literal[
    "waiting_approval",
    "queued",
    "dispatched",
    "running",
    "suspended",
    "blocked",
    "succeeded",
    "failed",
    "timeout",
    "cancelled",
]

WAITING_APPROVAL: Final = "waiting_approval"
QUEUED: Final = "queued"
DISPATCHED: Final = "dispatched"
RUNNING: Final = "running"
SUSPENDED: Final = "suspended"
BLOCKED: Final = "blocked"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
TIMEOUT: Final = "timeout"
CANCELLED: Final = "cancelled"

LIVE: Final[tuple[Status, ...]] = (WAITING_APPROVAL, QUEUED, DISPATCHED, RUNNING, SUSPENDED, BLOCKED)
TERMINAL: Final[frozenset[Status]] = frozenset((SUCCEEDED, FAILED, TIMEOUT, CANCELLED))
ALL: Final[tuple[Status, ...]] = (*LIVE, SUCCEEDED, FAILED, TIMEOUT, CANCELLED)

MEANING: Final[dict[Status, str]] = {
    WAITING_APPROVAL: "a person must agree before it may start",
    QUEUED: "waiting for a worker, or for its start time",
    DISPATCHED: "offered to workers that have a free slot",
    RUNNING: "held by one attempt of one worker",
    SUSPENDED: "waiting for answers; holds no worker",
    BLOCKED: "in the hands of a person, or cooling down",
    SUCCEEDED: "ended with a result",
    FAILED: "ended with a failure report",
    TIMEOUT: "ended because its time was up",
    CANCELLED: "ended on request",
}
