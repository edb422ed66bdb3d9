"""What `decide` is shown beside the task (`Evidence`), and what it answers (`Decision`)."""

from __future__ import annotations

from typing import Any

import msgspec

from endwell.errors import NotFound, Refused, StaleAttempt, WrongStatus
from endwell.model.approval import ApprovalRow
from endwell.model.card import Card
from endwell.model.commands import Submit
from endwell.model.effect import Effect
from endwell.model.facts import Fact
from endwell.model.message import Message, MessageStatus
from endwell.model.session import Session
from endwell.model.task import Task
from endwell.model.wait import Wait
from endwell.policy.approval import Guard
from endwell.policy.ledger import LedgerAnswer


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """Rows beside the task, as far as the command's rule reads them (`machine/table.py`).

    `waits` are those with rows of their own that the command may settle; a clock is shown the next ones by
    deadline, and `beyond` is the deadline of the first wait behind those.
    """

    session_is_live: bool = True
    session: Session | None = None
    key_holder: str | None = None  # the task whose turn holds the agent key
    rules: tuple[Guard, ...] = ()  # the approval rules that workers have registered for the agent
    approval: ApprovalRow | None = None  # the approval that was requested before the task could start
    effect: Effect | None = None
    restored_at: int | None = None  # when the namespace was last restored from a backup
    messages: tuple[Message, ...] = ()
    calls: frozenset[str] = frozenset()  # ids of the task's `tool.call` cards
    waits: tuple[Wait, ...] = ()
    beyond: int | None = None


class Closing(msgspec.Struct, frozen=True, gc=False):
    """A message to close in the inbox; `why` says why it was not consumed."""

    message_id: str
    status: MessageStatus
    why: str | None = None


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What follows from a command, or the refusal. A refused stale write has both: the log notes it.

    `cards` are content that the facts name, `messages` are sent, `closed` are messages to close, and `spawn`
    submits a new task in the same commit.
    """

    facts: tuple[Fact, ...] = ()
    cards: tuple[Card, ...] = ()
    messages: tuple[Message, ...] = ()
    closed: tuple[Closing, ...] = ()
    spawn: Submit | None = None
    ledger: LedgerAnswer | None = None
    refusal: Refused | NotFound | None = None


NOTHING = Decision()
NO_EVIDENCE = Evidence()


def refuse(refusal: Refused | NotFound, *facts: Fact) -> Decision:
    """Refuse the command; `facts` are logged all the same."""
    return Decision(facts=facts, refusal=refusal)


def refuse_status(task: Task, why: str, **details: Any) -> Decision:
    """Refuse a command that the task's status, or what lies beside it, does not allow."""
    return refuse(WrongStatus(why, task_id=task.id, **details))


def stale_attempt(task: Task, attempt_id: str) -> StaleAttempt:
    """The refusal of a write by an attempt that lost the task."""
    return StaleAttempt(f"attempt {attempt_id} no longer holds task {task.id}", task_id=task.id)
