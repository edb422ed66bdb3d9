"""Commands: every request to change something. They are handed to the one door.

A command changes one task, and brings what is not pure with it: a caller-made `command_id`,
new ids, and a jitter fraction. Durations are microseconds.
"""

from __future__ import annotations

from typing import Any

import msgspec

from endwell.model.card import Card
from endwell.model.effect import Verdict
from endwell.model.inside import OnParentEnd
from endwell.model.message import Message, MessageStatus
from endwell.model.task import ErrorInfo, WaitKind


class Command(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What every command carries. `actor` is who asks: a worker, a PMO, a person."""

    command_id: str
    namespace: str
    actor: str = ""
    causation_id: str | None = None


class TaskCommand(Command, frozen=True, kw_only=True):
    """A command to one task."""

    task_id: str


class AttemptCommand(TaskCommand, frozen=True, kw_only=True):
    """A command that only the holder of `attempt_id` may give."""

    attempt_id: str


class Submit(TaskCommand, frozen=True, kw_only=True):
    """Ask for work. The same key with the same agent and payload is the same task."""

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


class Dispatch(TaskCommand, frozen=True, kw_only=True):
    """Offer a ready task to workers that have a free slot. `is_carried`: by a stream, not by the inbox."""

    slot: int | None = None
    is_carried: bool = False


class Claim(AttemptCommand, frozen=True, kw_only=True):
    """Take a queued or dispatched task; the attempt is new.

    With `turn_id` and `epoch`, only if it is this very offer that stands: what a stream brought may be old.
    """

    session_id: str
    slot: int | None = None
    agent_version: str | None = None
    turn_id: str | None = None
    epoch: int | None = None


class Progress(AttemptCommand, frozen=True, kw_only=True):
    """Say that the attempt is getting somewhere; for the time `without_news` it has recorded nothing new."""

    note: str | None = None
    without_news: int = 0


class Repeat(AttemptCommand, frozen=True, kw_only=True):
    """Say that the turn has done the same, or met the same error, so many times in a row."""

    about: str
    count: int


class HearNudges(AttemptCommand, frozen=True, kw_only=True):
    """The agent reads what it was told about going round in circles."""


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
    """Give the turn back unharmed: the worker is going away."""

    reason: str = "drain"


class StartStep(AttemptCommand, frozen=True, kw_only=True):
    """Say that a step has begun which may take longer than a turn may be silent."""

    step: str
    timeout: int


class RecordStep(AttemptCommand, frozen=True, kw_only=True):
    """Record what came of a step. Without content (a failure that may be tried again) nothing is kept.

    `is_checked`: the content is `{"inputs": fingerprint, "value": ...}`.
    """

    step: str
    content: bytes | None = None
    content_hash: str = ""
    result_type: str = "success"
    took: int = 0
    error: ErrorInfo | None = None
    is_checked: bool = False


class IntendEffect(AttemptCommand, frozen=True, kw_only=True):
    """Ask the ledger whether an effect may be executed, and if so write the intent first."""

    step: str
    key: str
    args_hash: str
    timeout: int


class FinishEffect(AttemptCommand, frozen=True, kw_only=True):
    """The effect took place: its result, and with it the step's record."""

    step: str
    key: str
    content: bytes
    content_hash: str
    took: int = 0


class DoubtEffect(AttemptCommand, frozen=True, kw_only=True):
    """Nobody can say whether the effect took place: it timed out, or its function failed halfway."""

    key: str
    reason: str


class SettleEffect(TaskCommand, frozen=True, kw_only=True):
    """Say what became of an unknown effect: a `reconcile` of the holder, or a person (no `attempt_id`).

    "Not done" by a worker lets it run again only where nobody can still be executing it: `holder_gone`,
    or the agent's own word that a second call does no harm (`may_repeat`).
    """

    key: str
    verdict: Verdict
    content: bytes | None = None
    content_hash: str = ""
    attempt_id: str | None = None
    holder_gone: bool = False
    may_repeat: bool = False


class KeepDraft(AttemptCommand, frozen=True, kw_only=True):
    """Keep a partial deliverable; it is salvaged if the task ends without a whole one."""

    content: bytes
    content_hash: str


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to wait for, with what is asked: a tool call's arguments, what an approver is shown."""

    tool_call_id: str
    kind: WaitKind
    within: int
    name: str = ""
    content: bytes | None = None
    content_hash: str = ""
    by: tuple[str, ...] = ()
    quorum: int = 1
    is_child: bool = False


class Suspend(AttemptCommand, frozen=True, kw_only=True):
    """Let go of the worker until everything called for has been answered."""

    calls: tuple[Call, ...]


class Answer(TaskCommand, frozen=True, kw_only=True):
    """An answer from outside. Gated by the wait itself, never by epoch or attempt; kept if early or late."""

    tool_call_id: str
    content: bytes
    content_hash: str
    status: str = "success"


class Signal(TaskCommand, frozen=True, kw_only=True):
    """Tell a task something by name; kept until it waits for it."""

    name: str
    content: bytes
    content_hash: str


class Deliver(TaskCommand, frozen=True, kw_only=True):
    """Hand a message of the inbox to the task that waits for it."""

    message_id: str


class SkipMessage(TaskCommand, frozen=True, kw_only=True):
    """A message of the inbox cannot be delivered: lay it aside, and say so where people look."""

    message_id: str
    why: str


class InjectTimeout(TaskCommand, frozen=True, kw_only=True):
    """Report overdue waits to the inbox; never ends anything."""


class Disown(TaskCommand, frozen=True, kw_only=True):
    """The parent has ended: cancel the child, or leave it with a named owner, as its call said."""

    parent_id: str
    owner: str = ""


class Reclaim(AttemptCommand, frozen=True, kw_only=True):
    """Take the turn from an attempt whose session's lease has lapsed.

    From a stream, also whose entry it was and who has it now.
    """

    session_id: str
    reason: str = "lease_lapsed"
    old_consumer: str | None = None
    new_consumer: str | None = None
    message_id: str | None = None


class ClockFired(TaskCommand, frozen=True, kw_only=True):
    """A supervisor saw the task's clock pass; all its deadlines are looked at in order.

    `away` is how long the supervisor had not looked: whoever works may have slept as well.
    """

    fraction: float = 0.5
    away: int = 0


class Approve(TaskCommand, frozen=True, kw_only=True):
    """A person agrees; without `approval_id`: that the task may start. `shown_hash` says to what."""

    approval_id: str | None = None
    shown_hash: str | None = None


class Reject(TaskCommand, frozen=True, kw_only=True):
    """A person declines."""

    approval_id: str | None = None


class Cancel(TaskCommand, frozen=True, kw_only=True):
    """End the task now, whatever it is doing."""

    reason: str = "cancelled"


class RunNow(TaskCommand, frozen=True, kw_only=True):
    """Start a waiting or blocked task now."""


class Unblock(TaskCommand, frozen=True, kw_only=True):
    """Let a blocked task go on now; with `effect_key` only if it is held for that effect and no other."""

    effect_key: str | None = None


class Assign(TaskCommand, frozen=True, kw_only=True):
    """Name another person who answers for the task."""

    owner: str


class Block(TaskCommand, frozen=True, kw_only=True):
    """Put the task into a person's hands, or let it cool down. With `attempt_id` only its holder may."""

    reason: str
    owner: str | None = None
    cooldown: int | None = None
    attempt_id: str | None = None
    effect_key: str | None = None
    """Only while this effect is open: once it is settled, nobody would say any more what became of it."""


class Replay(TaskCommand, frozen=True, kw_only=True):
    """Close a dead letter by asking for the same work again as a new task."""

    new_task_id: str
    payload: bytes
    payload_hash: str
    deadline: int | None = None


class Abandon(TaskCommand, frozen=True, kw_only=True):
    """Close a dead letter for good."""

    note: str | None = None


class ClaimNext(Command, frozen=True, kw_only=True):
    """Take up to `limit` ready tasks of these agents. The door finds them and makes each a Claim."""

    session_id: str
    agents: tuple[str, ...]
    limit: int
    may_take_suspect: bool = True
    versions: dict[str, str] = {}


class DispatchNext(Command, frozen=True, kw_only=True):
    """Offer up to `limit` ready tasks of one agent. The door finds them and makes each a Dispatch.

    `may_offer_suspect`: also one that crashed its workers; where workers do not take by themselves, nobody
    else would. `is_carried`: as in `Dispatch`.
    """

    agent: str
    limit: int
    may_offer_suspect: bool = False
    is_carried: bool = False


class SettleChildren(Command, frozen=True, kw_only=True):
    """A task with children has ended: the door finds those still alive and makes each a Disown."""

    parent_id: str
    message_id: str


class TakeResumes(Command, frozen=True, kw_only=True):
    """Say that this worker is about to hand these answers on; others keep away for a while."""

    message_ids: tuple[str, ...]
    lease: int


class RequeueResumes(Command, frozen=True, kw_only=True):
    """Answers that a worker took and did not hand on in time are open again."""


class CloseMessages(Command, frozen=True, kw_only=True):
    """Messages that need no more attention, and why if nobody consumed them."""

    message_ids: tuple[str, ...]
    why: str | None
    status: MessageStatus = "skipped"


class RequeueMessages(Command, frozen=True, kw_only=True):
    """Messages whose processor is gone are pending again, if they have been processed since `before`."""

    message_ids: tuple[str, ...]
    before: int


class WakeAgents(Command, frozen=True, kw_only=True):
    """Ring for agents that have something in their inbox, `coder` or, by a channel, `coder/ops`."""

    agents: tuple[str, ...]


class Adopt(TaskCommand, frozen=True, kw_only=True):
    """Take over what another store recorded of a task: its next events, as rows of that table, and content.

    The events must go on exactly where the task is, with the hashes that they were sealed with.
    """

    events: tuple[tuple[Any, ...], ...] = ()
    cards: tuple[Card, ...] = ()
    messages: tuple[Message, ...] = ()


class TakeCursor(Command, frozen=True, kw_only=True):
    """Follow the log under this name, from where its last holder was; `start` counts for the very first."""

    name: str
    holder: str
    lease: int
    start: str = ""


class MoveCursor(Command, frozen=True, kw_only=True):
    """Note how far its holder has come. Without a lease it is let go of."""

    name: str
    holder: str
    fence: int
    position: str
    lease: int
    trouble: str | None = None


class FoldTallies(Command, frozen=True, kw_only=True):
    """Add up the counters of writers that have not been heard of for so long."""

    idle: int


class OpenSession(Command, frozen=True, kw_only=True):
    """One start of a worker or PMO process."""

    session_id: str
    kind: str
    name: str
    host: str
    pid: int
    agents: tuple[str, ...]
    concurrency: int
    lease: int


class Heartbeat(Command, frozen=True, kw_only=True):
    """Renew the session's lease, and name every attempt that it holds.

    `claiming` names claims whose answer the worker has not seen yet: what they took is not forgotten.
    `doing` says which attempt has been executing which step since when, `tick_age` how long ago the
    supervisor in that process last came to the end of a tick.
    """

    session_id: str
    lease: int
    attempts: tuple[tuple[str, str], ...] = ()
    claiming: tuple[str, ...] = ()
    doing: tuple[tuple[str, str, int], ...] = ()
    tick_age: int | None = None


class CloseSession(Command, frozen=True, kw_only=True):
    """Say goodbye, or bury a session whose lease lapsed."""

    session_id: str
    reason: str = "goodbye"


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows about an agent, so that anybody may submit to it."""

    name: str
    version: str | None = None
    concurrency: int | None = None
    retry_policy: str | None = None
    deadline: int | None = None
    payload_schema: str | None = None
    kind: str = "agent"
    options: str | None = None


class RegisterAgents(Command, frozen=True, kw_only=True):
    """Tell the store which agents a starting worker serves."""

    agents: tuple[AgentSpec, ...]
