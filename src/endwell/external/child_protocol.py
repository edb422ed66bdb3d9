"""What a worker and the child process of an isolated agent say to each other, as lines of JSON.

The worker's first line is a `TurnOrder`. The child says, in this order:

    {"ready": true}                                               or {"broken": error}
    {"doing": {step: since}}                                      any number of times, as the next two
    {"ask": "store", "id": n, "with": {"method": "card", "arguments": [...]}}
    {"ask": "lease", "id": n, "with": {}}
    {"result": value}                                             or how else the turn ended:
    {"error": {...}, "after": seconds}
    {"suspended": {"calls": [...], "children": [...]}}
    {"handed_over": true}
    {"lost": error}

Each `ask` is answered by `{"answer": n, "lease_left": seconds, "value": ...}`, or with `error` for `value`.
The worker answers `IN_FLIGHT` requests at a time and reads no further until the child has taken an answer, so
a child that asks without reading waits by itself and costs its worker a bounded amount of memory.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from endwell import errors
from endwell.errors import EndwellError
from endwell.model import commands as c
from endwell.model.content import MAX_INTEGER
from endwell.model.inside import OnParentEnd
from endwell.model.task import Task
from endwell.policy.ledger import LedgerAnswer
from endwell.policy.limits import Limits
from endwell.settings.sections import ApprovalSettings as ApprovalSettings
from endwell.settings.sections import WorkerSettings as WorkerSettings
from endwell.store.rows import Reply
from endwell.turn.suspension import Suspended

LINE_BYTES: Final = 16 * 1024 * 1024
"""Most that a child may say in one line: how its turn ended, with everything that it waits for."""
REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Most that one request may say: a record of the largest size, written in base64, and room to spare."""
IN_FLIGHT: Final = 16
"""Requests that a child has open at a time."""
PAGE_CARDS: Final = 32
"""Most cards in one answer, so that the worker never holds more of them for one child."""
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are not the expected JSON."""


class TurnOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One turn, and what its worker knows that is needed to carry it out."""

    task: Task
    actor: str
    settings: WorkerSettings
    limits: Limits
    approval: ApprovalSettings
    payload: msgspec.Raw


class ChildOutput(msgspec.Struct, frozen=True):
    """One line of a child. Each part stays JSON, which takes less room, until it is read by its type."""

    ready: msgspec.Raw = msgspec.Raw()
    broken: msgspec.Raw = msgspec.Raw()
    doing: msgspec.Raw = msgspec.Raw()
    ask: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    after: msgspec.Raw = msgspec.Raw()
    suspended: msgspec.Raw = msgspec.Raw()
    handed_over: msgspec.Raw = msgspec.Raw()
    lost: msgspec.Raw = msgspec.Raw()


class StoreQuestion(msgspec.Struct, frozen=True):
    """A method of the store that a child calls."""

    method: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"[]")


class ChildRequest(msgspec.Struct, frozen=True):
    """One request of a child; its answer has the same number."""

    ask: Literal["store", "lease"]
    id: Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
    question: StoreQuestion = msgspec.field(name="with")


class ErrorMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error of Endwell's tree; `type` names its class there."""

    type: str
    code: str
    message: str
    hint: str | None = None
    field: str | None = None
    task_id: str | None = None


class PipeAnswer(msgspec.Struct, frozen=True):
    """The worker's answer to one request. The lease held for `lease_left` seconds when it was written."""

    answer: int
    lease_left: float
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorMessage | None = None


class CommandMessage(msgspec.Struct, frozen=True):
    """A command with the name of its type."""

    type: str
    fields: msgspec.Raw


class ReplyMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reply to one command of a turn."""

    task: Task | None = None
    refusal: ErrorMessage | None = None
    ledger: LedgerAnswer | None = None


class ChildTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task that answers one of the calls. The worker makes the submission, its approval rule included."""

    tool_call_id: str
    agent: str
    payload: bytes
    agent_key: str | None = None
    on_parent_end: OnParentEnd = "cancel"
    deciding: int = 0
    """How much of the call's time the child process set aside for an approval."""


class SuspensionMessage(msgspec.Struct, frozen=True):
    """What a suspended turn waits for, and the tasks that it calls."""

    calls: tuple[c.Call, ...]
    children: tuple[ChildTask, ...]


def suspension_message(waiting: Suspended) -> SuspensionMessage:
    children = tuple(
        ChildTask(
            submit.parent_call or "",
            submit.agent,
            submit.payload,
            submit.agent_key,
            submit.on_parent_end,
            submit.approval_within or 0,
        )
        for submit in waiting.submits
    )
    return SuspensionMessage(waiting.calls, children)


def error_message(error: EndwellError) -> ErrorMessage:
    """An error as it crosses the pipe; a class that is not in the tree becomes its nearest ancestor there."""
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return ErrorMessage(kind.__name__, error.code, error.message, error.hint, error.field, error.task_id)


def error_from(message: ErrorMessage) -> EndwellError:
    """The error again: same class, same code."""
    kind = getattr(errors, message.type, None)
    if not isinstance(kind, type) or not issubclass(kind, EndwellError):
        kind = EndwellError
    error: EndwellError = kind.__new__(kind)
    about = {"code": message.code, "hint": message.hint, "field": message.field, "task_id": message.task_id}
    EndwellError.__init__(error, message.message, **about)
    return error


def reply_message(reply: Reply) -> ReplyMessage:
    refusal = None if reply.refusal is None else error_message(reply.refusal)
    return ReplyMessage(reply.task, refusal, reply.ledger)


def reply_from(message: ReplyMessage) -> Reply:
    refusal = None if message.refusal is None else error_from(message.refusal)
    return Reply(task=message.task, refusal=refusal, ledger=message.ledger)
