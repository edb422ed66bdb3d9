"""Commands: every request to change something. They are handed to the one door.

A command changes one task, and brings what is not pure with it: a caller-made `command_id`,
new ids, and a jitter fraction. Durations are microseconds.
"""

from __future__ import annotations

import msgspec

from endwell.model.task import ErrorInfo, Wait


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
    owner: str | None = None
    approval_within: int | None = None


class Dispatch(TaskCommand, frozen=True, kw_only=True):
    """Offer a ready task to workers that have a free slot."""

    slot: int | None = None


class Claim(AttemptCommand, frozen=True, kw_only=True):
    """Take a queued or dispatched task; the attempt is new."""

    session_id: str
    slot: int | None = None


class Progress(AttemptCommand, frozen=True, kw_only=True):
    """Say that the attempt is getting somewhere."""

    note: str | None = None


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


class Suspend(AttemptCommand, frozen=True, kw_only=True):
    """Let go of the worker until the waits are answered."""

    waits: tuple[Wait, ...]


class Answer(TaskCommand, frozen=True, kw_only=True):
    """An awaited answer arrived. Gated by the wait itself, never by epoch or attempt."""

    tool_call_id: str
    result_card: str | None = None


class Reclaim(AttemptCommand, frozen=True, kw_only=True):
    """Take the turn from an attempt whose session's lease has lapsed."""

    session_id: str
    reason: str = "lease_lapsed"


class ClockFired(TaskCommand, frozen=True, kw_only=True):
    """A supervisor saw the task's clock pass; all its deadlines are looked at in order."""

    fraction: float = 0.5


class Approve(TaskCommand, frozen=True, kw_only=True):
    """A person agrees that the task may start."""


class Reject(TaskCommand, frozen=True, kw_only=True):
    """A person declines."""


class Cancel(TaskCommand, frozen=True, kw_only=True):
    """End the task now, whatever it is doing."""

    reason: str = "cancelled"


class RunNow(TaskCommand, frozen=True, kw_only=True):
    """Start a waiting or blocked task now."""


class Block(TaskCommand, frozen=True, kw_only=True):
    """Put the task into a person's hands, or let it cool down."""

    reason: str
    owner: str | None = None
    cooldown: int | None = None


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


class DispatchNext(Command, frozen=True, kw_only=True):
    """Offer up to `limit` ready tasks of one agent. The door finds them and makes each a Dispatch."""

    agent: str
    limit: int


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
    """

    session_id: str
    lease: int
    attempts: tuple[tuple[str, str], ...] = ()
    claiming: tuple[str, ...] = ()


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


class RegisterAgents(Command, frozen=True, kw_only=True):
    """Tell the store which agents a starting worker serves."""

    agents: tuple[AgentSpec, ...]
