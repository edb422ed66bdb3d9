"""Facts: what an event of the log says happened. `decide` makes them, `evolve` folds them.

A fact carries every value that `evolve` needs (new deadlines, new counters), so that folding needs neither
settings nor clock. `type` is the event's name outside; `schema` rises when the shape changes, and `evolve`
reads every old one.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from endwell.errors import StoreError
from endwell.model.approval import ApprovalApproved as ApprovalApproved
from endwell.model.approval import ApprovalReminded as ApprovalReminded
from endwell.model.approval import ApprovalRequested as ApprovalRequested
from endwell.model.approval import ApprovalVoted as ApprovalVoted
from endwell.model.approval import ExpiredApproval as ExpiredApproval
from endwell.model.approval import RejectedApproval as RejectedApproval
from endwell.model.base import Fact as Fact
from endwell.model.card import CardKind
from endwell.model.effect import EffectDone as EffectDone
from endwell.model.effect import EffectDoubted as EffectDoubted
from endwell.model.effect import EffectIntended as EffectIntended
from endwell.model.effect import EffectSettled as EffectSettled
from endwell.model.task import ErrorInfo
from endwell.model.wait import TaskResumed as TaskResumed
from endwell.model.wait import TaskSuspended as TaskSuspended
from endwell.model.wait import WaitAnswered as WaitAnswered
from endwell.model.wait import WaitExpired as WaitExpired
from endwell.model.wait import WaitsAdded as WaitsAdded

RETURNED: Final = "returned"
"""The reason of a hand-back by a worker that keeps running: the next delivery counts, or it could loop."""


class TaskCreated(Fact, frozen=True):
    """The task was submitted and accepted."""

    type = "task.created"
    agent: str
    payload_card: str
    payload_hash: str
    run_at: int
    ends_by: int
    owner: str | None = None
    agent_key: str | None = None
    key: str | None = None
    channel: str = "main"
    fair_key: str | None = None
    agent_version: str | None = None
    trace: str | None = None
    parent_id: str | None = None
    replay_of: str | None = None
    priority: int = 0
    retry_policy: str | None = None
    family: str | None = None
    guard_at: int | None = None  # its chain was delivered too often: it never starts


class TaskDispatched(Fact, frozen=True, kw_only=True):
    """A turn was offered to workers. A redelivered turn keeps its id."""

    type = "task.dispatched"
    turn_id: str
    turn_number: int
    dispatch_count: int
    epoch: int
    ring_at: int | None = None
    dispatch_by: int | None = None
    slot: int | None = None
    guard_at: int | None = None
    is_offered: bool = False  # through the inbox; a direct claim needs no row there


class TaskRang(Fact, frozen=True, kw_only=True):
    """The doorbell of a dispatched turn was rung again; its timeout did not move."""

    type = "task.rang_again"
    ring_at: int | None


class TaskClaimed(Fact, frozen=True, kw_only=True):
    """A worker holds the turn; `attempt_id` fences every write it makes."""

    type = "task.claimed"
    attempt_id: str
    session_id: str
    progress_by: int
    agent_version: str | None = None


class TaskHeartbeat(Fact, frozen=True, kw_only=True):
    """The attempt made progress."""

    type = "task.heartbeat"
    progress_by: int
    note: str | None = None


class StepStarted(Fact, frozen=True, kw_only=True):
    """A long step has begun; until its own timeout the turn need not show progress."""

    type = "step.started"
    step: str
    progress_by: int


class StepRecorded(Fact, frozen=True, kw_only=True):
    """The outcome of a step. With a card it is never computed again."""

    type = "step.recorded"
    schema = 2  # 1 had no kind of card
    step: str
    progress_by: int
    result_type: str = "success"
    card: str | None = None
    card_hash: str | None = None
    took: int = 0
    error: ErrorInfo | None = None
    card_kind: CardKind | None = None  # where the result type leaves it open


class DraftKept(Fact, frozen=True, kw_only=True):
    """A partial deliverable was kept."""

    type = "task.draft_kept"
    card: str
    card_hash: str
    progress_by: int


class TaskNudged(Fact, frozen=True, kw_only=True):
    """The turn seems to repeat itself: its agent got a message about it, in its inbox."""

    type = "task.nudged"
    schema = 2  # 1 had no hash
    about: str
    message_id: str
    nudges: int
    progress_by: int
    card_hash: str | None = None


class TaskHandedBack(Fact, frozen=True, kw_only=True):
    """A worker gave the turn back. From a worker that stops, it costs the task nothing."""

    type = "task.handed_back"
    attempt_id: str
    reason: str


class TaskReclaimed(Fact, frozen=True, kw_only=True):
    """The holder's lease lapsed: the same turn goes to a new attempt."""

    type = "task.reclaimed"
    attempt_id: str
    session_id: str
    by: str
    reason: str
    epoch: int
    crash_count: int
    crash_times: str
    guard_at: int | None = None
    cost: str = "crash"
    old_consumer: str | None = None
    new_consumer: str | None = None
    message_id: str | None = None


class TaskReaped(Fact, frozen=True, kw_only=True):
    """A supervisor ended the turn by force."""

    type = "task.reaped"
    reason: str
    epoch: int
    attempt_id: str | None = None
    session_id: str | None = None


class TurnEnded(Fact, frozen=True, kw_only=True):
    """One assignment of the task ended: success, failed, timeout or canceled."""

    type = "turn.ended"
    schema = 2  # 1 had no hash
    turn_id: str
    outcome: str
    epoch: int
    error: str | None = None
    deliverable_card: str | None = None  # of a turn that was ended by force while its task continues
    deliverable_hash: str | None = None
    partial: bool = False  # that deliverable is a salvaged draft


class TaskRetryScheduled(Fact, frozen=True, kw_only=True):
    """The turn failed and another will be tried."""

    type = "task.retry_scheduled"
    retry_count: int
    run_at: int
    reason: str
    error: ErrorInfo
    run: int | None = None


class TaskRushed(Fact, frozen=True, kw_only=True):
    """A person asked for a waiting task to start now."""

    type = "task.rushed"
    run_at: int
    by: str


class TaskBlocked(Fact, frozen=True, kw_only=True):
    """A person must act, or a cooldown must end, before the task continues."""

    type = "task.blocked"
    reason: str
    owner: str | None = None
    remind_at: int | None = None
    recover_at: int | None = None
    error: ErrorInfo | None = None
    retry_count: int | None = None
    effect_key: str | None = None  # the effect that a person must settle
    is_unaccepted: bool = False  # no person accepted the hold yet: `ends_by` keeps running


class TaskReminded(Fact, frozen=True, kw_only=True):
    """The person who must act on the task was reminded."""

    type = "task.reminded"
    remind_at: int
    ends_by: int | None = None  # set where an earlier version stopped it for a hold that was never accepted


class TaskUnblocked(Fact, frozen=True, kw_only=True):
    """The task is queued again; the time for which a person held it is given back."""

    type = "task.unblocked"
    by: str
    run_at: int
    ends_by: int
    retry_count: int | None = None


class TaskAssigned(Fact, frozen=True, kw_only=True):
    """A person owns the task from now on, and accepts the hold if it is blocked."""

    type = "task.assigned"
    owner: str
    by: str
    accepts_hold: bool = False


class SucceededEnding(Fact, frozen=True, kw_only=True):
    """Ended with a result."""

    type = "task.succeeded"
    deliverable_card: str
    deliverable_hash: str


class Ending(Fact, frozen=True, kw_only=True):
    """Ended without a result; the deliverable is a failure report."""

    reason: str
    deliverable_card: str
    deliverable_hash: str
    error: ErrorInfo | None = None
    retry_count: int = 0
    partial: bool = False


class FailedEnding(Ending, frozen=True, kw_only=True):
    """Ended as failed."""

    type = "task.failed"


class TimedOutEnding(Ending, frozen=True, kw_only=True):
    """Ended because its time was up."""

    type = "task.timeout"


class CancelledEnding(Ending, frozen=True, kw_only=True):
    """Ended on request."""

    type = "task.cancelled"
    by: str


class TaskDeadLettered(Fact, frozen=True, kw_only=True):
    """The failed task awaits a person's verdict: replay it, or abandon it."""

    type = "task.dlq"
    fingerprint: str


class DeadLetterReplayed(Fact, frozen=True, kw_only=True):
    """The dead letter was replayed as a new task."""

    type = "dlq.replayed"
    superseded_by: str
    by: str


class DeadLetterAbandoned(Fact, frozen=True, kw_only=True):
    """The dead letter was closed for good."""

    type = "dlq.abandoned"
    by: str
    note: str | None = None


class TaskOrphaned(Fact, frozen=True, kw_only=True):
    """The parent has ended; the task continues, in the hands of its owner."""

    type = "task.orphaned"
    parent_id: str
    owner: str


class InboxSkipped(Fact, frozen=True, kw_only=True):
    """A message could not be delivered and stays in the inbox as skipped. Moves nothing."""

    type = "inbox.skipped"
    message_id: str
    message_type: str
    watchdog_error: str


class WriteRefused(Fact, frozen=True, kw_only=True):
    """An attempt that no longer holds the task tried to write. Moves nothing."""

    type = "write.refused"
    command: str
    attempt_id: str
    holder: str | None = None


def _leaf_classes(cls: type[Fact]) -> list[type[Fact]]:
    below = [leaf for sub in cls.__subclasses__() for leaf in _leaf_classes(sub)]
    return ([cls] if cls.type else []) + below


BY_TYPE: Final[dict[str, type[Fact]]] = {
    cls.type: cls for cls in sorted(_leaf_classes(Fact), key=lambda cls: cls.type)
}
_decoders: Final = {name: msgspec.json.Decoder(cls) for name, cls in BY_TYPE.items()}
_encoder: Final = msgspec.json.Encoder()


def encode(fact: Fact) -> bytes:
    """Encode the event's `data`: fields in declared order, defaults left out; equal bytes on every store."""
    return _encoder.encode(fact)


def decode(type_: str, schema: int, data: bytes) -> Any:
    """Decode a fact from the log. Fields that a later schema added have defaults, so old facts decode."""
    decoder = _decoders.get(type_)
    if decoder is None or not 1 <= schema <= BY_TYPE[type_].schema:
        raise _unreadable_event(type_, f"schema {schema} of it is not known here")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable_event(type_, str(error)) from None


def _unreadable_event(type_: str, why: str) -> StoreError:
    return StoreError(
        f"an event of type {type_[:80]!r} cannot be read: {why[:200]}",
        code="unreadable_event",
        hint="a newer Endwell may have written it; `endwell events verify` says which task it belongs to",
    )


def encode_error(error: ErrorInfo) -> str:
    """An error as one column's text."""
    return _encoder.encode(error).decode()


_COMMITTED: Final[dict[str, tuple[str, ...]]] = {
    "success": ("command_committed",),
    "pure": ("command_committed",),
    "side_effect_committed": ("tool_invocation_finished", "command_committed"),
}
"""Names of a completed step outside, before `node_finished`; a failed step commits nothing."""


def is_completed(result_type: str) -> bool:
    """Whether a step with this result is never run again."""
    return result_type in _COMMITTED


def outside_names(result_type: str) -> tuple[str, ...]:
    """The names under which export and relay publish a recorded step, in order."""
    return (*_COMMITTED.get(result_type, ()), "node_finished")
