"""Every status and every command that could meet in it: which cells can be reached, and which cannot."""

from __future__ import annotations

from typing import Final

from endwell.machine.table import FENCED, TABLE
from endwell.model import commands as c
from endwell.model import status as s

NO_TASK: Final = "no task"
BY_ATTEMPT: Final = (*sorted(kind.__name__ for kind in FENCED), "Reclaim")
BY_ANYONE: Final = tuple(
    kind.__name__ for kind in TABLE if kind.__name__ not in BY_ATTEMPT and kind is not c.Resubmit
)

Cell = tuple[str, str]

ALL_CELLS: Final[frozenset[Cell]] = frozenset(
    (status, command)
    for status in (NO_TASK, *s.ALL)
    for command in (
        *BY_ANYONE,
        *(f"{name} by holder" for name in BY_ATTEMPT),
        *(f"{name} by stale" for name in BY_ATTEMPT),
    )
)

# a command by the attempt that holds the task, where no attempt holds it
_NO_HOLDER: Final[dict[str, str]] = {
    NO_TASK: "a task that does not exist has no holder",
    s.WAITING_APPROVAL: "nothing is claimed before it is approved",
    s.QUEUED: "every way into the queue lets go of the attempt",
    s.DISPATCHED: "a turn is offered before it is claimed",
    s.SUSPENDED: "suspending lets go of the attempt",
    s.BLOCKED: "blocking lets go of the attempt",
    s.SUCCEEDED: "an ended task has no attempt",
    s.FAILED: "an ended task has no attempt",
    s.TIMEOUT: "an ended task has no attempt",
    s.CANCELLED: "an ended task has no attempt",
}
IMPOSSIBLE: Final[dict[Cell, str]] = {
    (status, f"{name} by holder"): why for status, why in _NO_HOLDER.items() for name in BY_ATTEMPT
}

# allowed by the machine's table, and yet nothing ever comes of it
ALWAYS_REFUSED: Final[dict[Cell, str]] = {
    (s.SUCCEEDED, "Replay"): "there is nothing to try again",
    (s.SUCCEEDED, "Abandon"): "a success is no dead letter",
    (s.CANCELLED, "Abandon"): "a cancelled task is no dead letter",
    (s.WAITING_APPROVAL, "Deliver"): "a task that has not begun waits for nothing",
    **{(status, "Signal"): "an ended task takes no signal" for status in s.TERMINAL},
}


def accepting_cells() -> set[Cell]:
    """The cells in which something must be able to happen."""
    allowed = {
        (status, f"{kind.__name__} by holder" if kind.__name__ in BY_ATTEMPT else kind.__name__)
        for kind, rule in TABLE.items()
        for status in rule.when
        if not rule.creates_task
    }
    return (allowed | {(NO_TASK, "Submit")}) - set(ALWAYS_REFUSED)
