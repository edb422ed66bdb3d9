"""Commands: every request to change something. They are handed to the one door.

A command changes one task, and brings what is not pure with it: a caller-made `command_id`,
new ids, and a jitter fraction. Durations are microseconds.
"""

from __future__ import annotations

from typing import Any

import msgspec

from endwell.model.agent_spec import AgentSpec as AgentSpec
from endwell.model.base import AttemptCommand as AttemptCommand
from endwell.model.base import Command as Command
from endwell.model.base import TaskCommand as TaskCommand
from endwell.model.call import Call as Call
from endwell.model.card import Card
from endwell.model.effect_commands import DoubtEffect as DoubtEffect
from endwell.model.effect_commands import FinishEffect as FinishEffect
from endwell.model.effect_commands import IntendEffect as IntendEffect
from endwell.model.effect_commands import SettleEffect as SettleEffect
from endwell.model.evidence import HolderEvidence as HolderEvidence
from endwell.model.inside import OnParentEnd
from endwell.model.message import Message, MessageStatus
from endwell.model.task import ErrorInfo


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
    origin_at: int | None = None


class Resubmit(Submit, frozen=True, kw_only=True):
    """The work of an ended task, asked for again. Only a replay makes one.

    `approved_*` say what people agreed to before: who did, to which payload, under which rule. It counts
    again for exactly that payload under exactly that rule.
    """

    approved_by: str | None = None
    approved_hash: str = ""
    approved_rule: tuple[tuple[str, ...], int] = ((), 1)


class Dispatch(TaskCommand, frozen=True, kw_only=True):
    """Offer a ready task to workers that have a free slot. `is_carried`: by a stream, not by the inbox."""

    slot: int | None = None
    is_carried: bool = False


class Claim(AttemptCommand, frozen=True, kw_only=True):
    """Take a queued or dispatched task; the attempt is new.

    With `turn_id` and `epoch`, only if it is this very offer that stands: what a stream brought may be old.
    `served_elsewhere`: versions ("" for none) of live workers; a task that one of them began is left to them.
    With `agents`, only if the task is for one of them: what a stream brought may name another agent.
    """

    session_id: str
    slot: int | None = None
    agent_version: str | None = None
    served_elsewhere: tuple[str, ...] = ()
    turn_id: str | None = None
    epoch: int | None = None
    agents: tuple[str, ...] | None = None


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
    """Give the turn back unharmed: the worker is going away. One that stays says `RETURNED`."""

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


class KeepDraft(AttemptCommand, frozen=True, kw_only=True):
    """Keep a partial deliverable; it is salvaged if the task ends without a whole one."""

    content: bytes
    content_hash: str


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
    """Hand a message of the inbox to the task that waits for it.

    `is_counted`: its delivery was counted; if it stays in the inbox, the count begins again.
    """

    message_id: str
    is_counted: bool = False


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
    """Take the turn from an attempt whose lease has lapsed; from a stream, also whose entry it was."""

    session_id: str
    reason: str = "lease_lapsed"
    evidence: HolderEvidence | None = None
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
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    served_elsewhere: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    passed_over: int = 0


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
    """Say that this worker is about to hand these messages on; others keep away for a while.

    Each is counted in its inbox row before it is tried: a message that ends the process is counted too.
    """

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
    """One start of a process, or its next session: the `lost` one ends, and its turns are handed back."""

    session_id: str
    kind: str
    name: str
    host: str
    pid: int
    agents: tuple[str, ...]
    concurrency: int
    lease: int
    process: str = ""
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    lost: str | None = None


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
    """Say goodbye, or bury a session whose lease lapsed.

    `hands_back`: the turns that the session still holds are handed back in the same commit.
    """

    session_id: str
    reason: str = "goodbye"
    hands_back: bool = False


class ForeignReport(Command, frozen=True, kw_only=True):
    """What a foreign worker reports about a turn, as the command that follows if the worker may give it.

    `session_id` is the session that held the task when the report was read; `worker` is the reported name.
    """

    session_id: str
    worker: str
    report: Finish | FailTurn | HandBack | Progress


class RegisterAgents(Command, frozen=True, kw_only=True):
    """Tell the store which agents a starting worker serves, and which of them need an approval to start.

    `rules` are names of agents, each with its resolved rule; they count for as long as the session lives, and
    after it until another worker registers the agent. `drops_expired`: drop rows that have expired.
    """

    agents: tuple[AgentSpec, ...]
    session_id: str = ""
    rules: tuple[tuple[str, str], ...] = ()
    drops_expired: bool = False
