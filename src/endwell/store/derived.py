"""Commands that follow from other commands of a batch, and the error that a defect becomes."""

from __future__ import annotations

from collections.abc import Sequence

from endwell.errors import EndwellError
from endwell.model import commands as c
from endwell.model.message import Message
from endwell.model.task import Task


def single_command(
    command: c.ClaimNext | c.DispatchNext, command_id: str, task: Task, slot: int | None
) -> c.Claim | c.Dispatch:
    if isinstance(command, c.DispatchNext):
        return c.Dispatch(
            command_id=command_id,
            namespace=command.namespace,
            actor=command.actor,
            task_id=task.id,
            slot=slot,
            is_streamed=command.is_streamed,
        )
    return c.Claim(
        command_id=command_id,
        namespace=command.namespace,
        actor=command.actor,
        task_id=task.id,
        attempt_id=command_id,
        session_id=command.session_id,
        slot=slot,
        agent_version=command.versions.get(task.agent),
        served_elsewhere=command.served_elsewhere.get(task.agent, ()),
    )


def disown_command(command: c.SettleChildren, number: int, child: Task) -> c.Disown:
    return c.Disown(
        command_id=f"{command.command_id}.{number}",
        namespace=command.namespace,
        actor=command.actor,
        causation_id=command.causation_id,
        task_id=child.id,
        parent_id=command.parent_id,
    )


def follow_ups(command: c.Command, messages: Sequence[Message]) -> tuple[c.Command, ...]:
    """A message is in the inbox with this commit; handing it on is a command to the task it is for."""
    return tuple(follow_up(m, command.actor) for m in messages if m.status == "pending")


def follow_up(message: Message, actor: str) -> c.Deliver | c.SettleChildren:
    """The command that consumes a message."""
    command_id = f"{message.id}~d"
    if message.message_type == "stop":
        return c.SettleChildren(
            command_id=command_id,
            namespace=message.namespace,
            actor=actor,
            parent_id=message.task_id or "",
            message_id=message.id,
        )
    return c.Deliver(
        command_id=command_id,
        namespace=message.namespace,
        actor=actor,
        task_id=message.task_id or "",
        message_id=message.id,
    )


def hand_back_command(command: c.Command, number: int, task: Task, reason: str) -> c.HandBack:
    return c.HandBack(
        command_id=f"{command.command_id}.{number}",
        namespace=command.namespace,
        actor=command.actor,
        task_id=task.id,
        attempt_id=task.attempt_id or "",
        reason=reason,
    )


def reclaim_command(command: c.Heartbeat, number: int, task: Task) -> c.Reclaim:
    return c.Reclaim(
        command_id=f"{command.command_id}.{number}",
        namespace=command.namespace,
        actor=command.actor,
        task_id=task.id,
        attempt_id=task.attempt_id or "",
        session_id=command.session_id,
        reason="forgotten_by_its_worker",
    )


def wrapped_error(error: Exception) -> EndwellError:
    if isinstance(error, EndwellError):
        return error
    wrapped = EndwellError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
