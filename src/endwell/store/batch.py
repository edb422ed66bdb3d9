"""One batch: the commands of one transaction, decided one after another on the rows that were read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from endwell.machine.approvals import not_approved
from endwell.machine.decide import decide
from endwell.machine.decision import NO_EVIDENCE, Evidence
from endwell.machine.table import START, TABLE, Read
from endwell.model import commands as c
from endwell.model import status as s
from endwell.model.message import Message
from endwell.model.task import Task
from endwell.policy.limits import Limits
from endwell.store.command_rows import SHOWN
from endwell.store.rows import Reply, Rows
from endwell.store.working_set import WorkingSet


class Batch:
    """What the commands of a batch share: the rows, and what the commands before made of them."""

    def __init__(self, rows: Rows, now: int, limits: Limits) -> None:
        self.rows = rows
        self.now = now
        self.limits = limits
        self.work = WorkingSet(rows, now)

    def decide(self, task: Task | None, command: c.TaskCommand) -> Reply:
        """Decide a command to a task, and note what follows from it."""
        reads = TABLE[type(command)].reads
        return self.decide_on(task, command, self.evidence(task, command, reads) if reads else NO_EVIDENCE)

    def evidence(self, task: Task | None, command: c.TaskCommand, reads: tuple[Read, ...]) -> Evidence:
        """What a decision is shown of the rows beside the task."""
        fields: dict[str, Any] = {}
        for read in reads:
            fields.update(SHOWN[read](self.work, task, command))
        return Evidence(**fields) if fields else NO_EVIDENCE

    def decide_on(self, task: Task | None, command: c.TaskCommand, seen: Evidence) -> Reply:
        """Decide a command on evidence that is at hand."""
        decision = decide(task, command, self.now, self.limits, seen)
        after = task
        if decision.facts:
            after = self.work.record(task, decision, command)
        elif decision.cards or decision.messages:
            self.work.send(decision)
        if decision.closed:
            self.work.close(command.namespace, decision.closed)
        elif type(command) is c.Deliver and command.is_counted:
            self.work.add_row("reset_deliveries", (command.namespace, command.message_id))
        if decision.spawn is not None:
            after = self.decide(None, decision.spawn).task
        refusal = decision.refusal
        if refusal is None and after is not None and after.status == s.WAITING_APPROVAL:
            refusal = not_approved(after) if START in TABLE[type(command)].reads else None
        return Reply(
            after,
            refusal,
            task is None and bool(decision.facts),
            ledger=decision.ledger,
            follow=_follow_ups(command, decision.messages) if decision.messages else (),
        )


def _follow_ups(command: c.Command, messages: Sequence[Message]) -> tuple[c.Command, ...]:
    """The messages are in the inbox with this commit; delivering them takes commands to other tasks."""
    return tuple(follow_up(message, command.actor) for message in messages if message.status == "pending")


def follow_up(message: Message, actor: str) -> c.Deliver | c.SettleChildren:
    """The command that consumes a message."""
    command_id, task_id = f"{message.id}~d", message.task_id or ""
    about: dict[str, Any] = {"command_id": command_id, "namespace": message.namespace, "actor": actor}
    if message.message_type == "stop":
        return c.SettleChildren(**about, parent_id=task_id, message_id=message.id)
    return c.Deliver(**about, task_id=task_id, message_id=message.id)
