"""Commands: every request to change something. The store's one door takes them (`store/door.py`).

A command changes one task, and brings what is not pure with it: a `command_id` made by the sender, new ids,
and a jitter fraction. Durations are microseconds. `machine/table.py` says what each command to a task needs.
"""

from __future__ import annotations

from typing import Any

import msgspec

from endwell.model.agent_spec import AgentSpec as AgentSpec
from endwell.model.agent_spec import RegisterAgents as RegisterAgents
from endwell.model.base import AttemptCommand as AttemptCommand
from endwell.model.base import Command as Command
from endwell.model.base import TaskCommand as TaskCommand
from endwell.model.card import Card
from endwell.model.cursor import MoveCursor as MoveCursor
from endwell.model.cursor import TakeCursor as TakeCursor
from endwell.model.effect import DoubtEffect as DoubtEffect
from endwell.model.effect import FinishEffect as FinishEffect
from endwell.model.effect import IntendEffect as IntendEffect
from endwell.model.effect import SettleEffect as SettleEffect
from endwell.model.inside import OnParentEnd
from endwell.model.message import CloseMessages as CloseMessages
from endwell.model.message import Message
from endwell.model.message import RequeueMessages as RequeueMessages
from endwell.model.message import RequeueResumes as RequeueResumes
from endwell.model.message import TakeResumes as TakeResumes
from endwell.model.message import WakeAgents as WakeAgents
from endwell.model.session import CloseSession as CloseSession
from endwell.model.session import Heartbeat as Heartbeat
from endwell.model.session import OpenSession as OpenSession
from endwell.model.task import ErrorInfo
from endwell.model.wait import Call as Call


class Submit(TaskCommand, frozen=True, kw_only=True):
    """Submit a task. The same key with the same agent and payload is the same task."""

    agent: str
    payload: bytes
    payload_hash: str
    key: str | None = None
    agent_key: str | None = None
    channel: str = "main"
    fair_key: str | None = None
    agent_version: str | None = None
    trace: str | None = None
    parent_id: str | None = None
    replay_of: str | None = None
    priority: int = 0
    retry_policy: str | None = None
    delay: int = 0
    deadline: int | None = None
    ends_before: int | None = None
    owner: str | None = None
    approval_within: int | None = None
    approval_by: tuple[str, ...] = ()
    approval_quorum: int = 1
    parent_agent: str = ""
    parent_call: str | None = None
    depth: int = 0
    held_keys: tuple[str, ...] = ()
    on_parent_end: OnParentEnd = "cancel"
    lineage: str | None = None
    chain: int = 0
    origin_at: int | None = None


class Resubmit(Submit, frozen=True, kw_only=True):
    """Submit the work of an ended task again; made by `Replay` only.

    `approved_*` say who agreed before, to which payload, under which rule. That approval counts again for
    exactly this payload under exactly this rule.
    """

    approved_by: str | None = None
    approved_hash: str = ""
    approved_rule: tuple[tuple[str, ...], int] = ((), 1)


class Dispatch(TaskCommand, frozen=True, kw_only=True):
    """Offer a ready task to workers with free slots. `is_streamed`: by a stream, not by the inbox."""

    slot: int | None = None
    is_streamed: bool = False


class Claim(AttemptCommand, frozen=True, kw_only=True):
    """Claim a queued or dispatched task for a new attempt.

    With `turn_id` and `epoch`, only if exactly that offer stands: a stream's entry may be old. With `agents`,
    only if the task is for one of them: a stream's entry may name another agent. `served_elsewhere`: versions
    ("" for none) of live workers; a task that one of these versions began is left to them. Without
    `may_take_suspect`, only if the task is not close to its crash limit.
    """

    session_id: str
    slot: int | None = None
    agent_version: str | None = None
    served_elsewhere: tuple[str, ...] = ()
    turn_id: str | None = None
    epoch: int | None = None
    agents: tuple[str, ...] | None = None
    may_take_suspect: bool = True


class Progress(AttemptCommand, frozen=True, kw_only=True):
    """Report that the attempt makes progress; for the time `without_news` it has recorded nothing new."""

    note: str | None = None
    without_news: int = 0


class Repeat(AttemptCommand, frozen=True, kw_only=True):
    """Report that the turn did the same, or met the same error, `count` times in a row."""

    about: str
    count: int


class HearNudges(AttemptCommand, frozen=True, kw_only=True):
    """Mark the nudges as read by the agent."""


class Finish(AttemptCommand, frozen=True, kw_only=True):
    """End the task with a result."""

    result: bytes
    result_hash: str


class FailTurn(AttemptCommand, frozen=True, kw_only=True):
    """End the turn with an error; policy says whether another is tried."""

    error: ErrorInfo
    retry_after: int | None = None
    fraction: float = 0.5


class HandBack(AttemptCommand, frozen=True, kw_only=True):
    """Give the turn back unharmed: the worker is stopping. A worker that keeps running says `RETURNED`."""

    reason: str = "drain"


class StartStep(AttemptCommand, frozen=True, kw_only=True):
    """Report the start of a step that may take longer than a turn may be silent."""

    step: str
    timeout: int


class RecordStep(AttemptCommand, frozen=True, kw_only=True):
    """Record the outcome of a step. Without content (a retryable failure) no card is kept.

    `is_checked`: the content is `{"inputs": fingerprint, "value": ...}`.
    """

    step: str
    content: bytes | None = None
    content_hash: str = ""
    result_type: str = "success"
    took: int = 0
    error: ErrorInfo | None = None
    is_checked: bool = False


class KeepDraft(AttemptCommand, frozen=True, kw_only=True):
    """Keep a partial deliverable; it is salvaged if the task ends without a full one."""

    content: bytes
    content_hash: str


class Suspend(AttemptCommand, frozen=True, kw_only=True):
    """Release the worker until every call is answered."""

    calls: tuple[Call, ...]


class Answer(TaskCommand, frozen=True, kw_only=True):
    """Answer a call from outside. Gated by the wait alone, not by epoch or attempt; kept if early or late."""

    tool_call_id: str
    content: bytes
    content_hash: str
    status: str = "success"


class Signal(TaskCommand, frozen=True, kw_only=True):
    """Send a task a named signal; kept until the task waits for it."""

    name: str
    content: bytes
    content_hash: str


class Deliver(TaskCommand, frozen=True, kw_only=True):
    """Deliver a message of the inbox to the task that waits for it.

    `is_counted`: the delivery was counted; if the message stays in the inbox, the count starts again.
    """

    message_id: str
    is_counted: bool = False


class SkipMessage(TaskCommand, frozen=True, kw_only=True):
    """Mark a message of the inbox that cannot be delivered as skipped, and log why."""

    message_id: str
    why: str


class InjectTimeout(TaskCommand, frozen=True, kw_only=True):
    """Report overdue waits to the inbox; never ends a task."""


class Disown(TaskCommand, frozen=True, kw_only=True):
    """Cancel the child of an ended parent, or leave it with a named owner, as its call said."""

    parent_id: str
    owner: str = ""


class HolderEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor knows about the holder of a turn that it reclaims. Times are the store's.

    `holder_is_alive`: what this machine's process table says; None if it cannot say. `watched_since`: since
    when the store has answered the supervisor without a gap. `seen_at`: when it last answered before the
    reclaim was sent; a reclaim that waits for longer than `longest_gap` after that is refused.
    """

    holder_is_alive: bool | None = None
    watched_since: int | None = None
    seen_at: int | None = None
    longest_gap: int | None = None


class Reclaim(AttemptCommand, frozen=True, kw_only=True):
    """Take the turn from an attempt whose lease has lapsed; from a stream, with the entry's consumers."""

    session_id: str
    reason: str = "lease_lapsed"
    evidence: HolderEvidence | None = None
    old_consumer: str | None = None
    new_consumer: str | None = None
    message_id: str | None = None


class ClockFired(TaskCommand, frozen=True, kw_only=True):
    """Act on the task's passed deadlines, in the order of the clock table.

    `away`: for how long the supervisor did not look; the worker may have slept as well.
    """

    fraction: float = 0.5
    away: int = 0


class Approve(TaskCommand, frozen=True, kw_only=True):
    """Agree, as a person; without `approval_id`: that the task may start. `shown_hash` says to what."""

    approval_id: str | None = None
    shown_hash: str | None = None


class Reject(TaskCommand, frozen=True, kw_only=True):
    """Decline, as a person."""

    approval_id: str | None = None


class Cancel(TaskCommand, frozen=True, kw_only=True):
    """End the task now, in any live status."""

    reason: str = "cancelled"


class RunNow(TaskCommand, frozen=True, kw_only=True):
    """Start a waiting or blocked task now."""


class Unblock(TaskCommand, frozen=True, kw_only=True):
    """Queue a blocked task now; with `effect_key` only if it is held for exactly that effect."""

    effect_key: str | None = None


class Assign(TaskCommand, frozen=True, kw_only=True):
    """Make another person the owner of the task."""

    owner: str


class Block(TaskCommand, frozen=True, kw_only=True):
    """Hold the task for a person, or let it cool down. With `attempt_id` only its holder may.

    `effect_key`: only while this effect is open; once it is settled, no verdict would free the task.
    """

    reason: str
    owner: str | None = None
    cooldown: int | None = None
    attempt_id: str | None = None
    effect_key: str | None = None


class Replay(TaskCommand, frozen=True, kw_only=True):
    """Close a dead letter by submitting the same work again as a new task."""

    new_task_id: str
    payload: bytes
    payload_hash: str
    deadline: int | None = None


class Abandon(TaskCommand, frozen=True, kw_only=True):
    """Close a dead letter for good."""

    note: str | None = None


class ClaimNext(Command, frozen=True, kw_only=True):
    """Claim up to `limit` ready tasks of these agents. The door finds them and makes a Claim for each."""

    session_id: str
    agents: tuple[str, ...]
    limit: int
    may_take_suspect: bool = True
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    served_elsewhere: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    passed_over: int = 0


class DispatchNext(Command, frozen=True, kw_only=True):
    """Offer up to `limit` ready tasks of one agent. The door finds them and makes a Dispatch for each.

    `may_offer_suspect`: also a task that crashed its workers, because no worker claims it by itself; but only
    while no other such task is offered or held, since any worker may take it.
    `is_streamed`: as in `Dispatch`.
    """

    agent: str
    limit: int
    may_offer_suspect: bool = False
    is_streamed: bool = False


class SettleChildren(Command, frozen=True, kw_only=True):
    """Settle the children of an ended task. The door finds the live ones and makes a Disown for each."""

    parent_id: str
    message_id: str


class Adopt(TaskCommand, frozen=True, kw_only=True):
    """Import what another store recorded of a task: its next events, as rows of that table, and content.

    The events must continue exactly where the task is, with the hashes that they were sealed with.
    """

    events: tuple[tuple[Any, ...], ...] = ()
    cards: tuple[Card, ...] = ()
    messages: tuple[Message, ...] = ()


class FoldTallies(Command, frozen=True, kw_only=True):
    """Add up the counters of writers that have been idle for this long."""

    idle: int


class ForeignReport(Command, frozen=True, kw_only=True):
    """Decide a foreign worker's `report` on a turn, if that worker holds the turn.

    `session_id` is the session that held the task when the report was read; `worker` is the reported name.
    """

    session_id: str
    worker: str
    report: Finish | FailTurn | HandBack | Progress


class MarkRestored(Command, frozen=True, kw_only=True):
    """Note that the namespace was restored or imported: it lacks the effects made since the backup."""
