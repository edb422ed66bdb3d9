"""Answers to tool calls, and signals to tasks."""

from __future__ import annotations

from typing import Any

import msgspec

from endwell.errors import NotFound
from endwell.model import content, names
from endwell.model.card import answer_id, task_of_call
from endwell.model.commands import Answer, Signal
from endwell.model.moments import moment
from endwell.store.actor import Actor
from endwell.store.contract import Store
from endwell.store.reads.inbox import OpenCall


async def answer(actor: Actor, call_id: str, value: Any = None, status: str = "success") -> dict[str, Any]:
    """Give a tool call its result. The first answer counts; the outcome says whether this one did."""
    encoded = content.encode(value, what="answer")
    command = actor.command(
        Answer,
        task_id=task_of_call(call_id),
        tool_call_id=call_id,
        content=encoded,
        content_hash=content.fingerprint(encoded),
        status=status,
    )
    try:
        task = (await actor.store.commit_one(command)).unwrap()
    except NotFound:
        raise NotFound(
            f"no tool call has the id {content.printable_text(call_id)}",
            code="no_such_call",
            hint="`endwell tool list` shows the open ones",
        ) from None
    outcome = "late" if task.is_ended else await _outcome(actor, call_id, command.command_id)
    return {"call_id": call_id, "task_id": task.id, "task_status": task.status, "outcome": outcome}


async def fail(actor: Actor, call_id: str, error: Any) -> dict[str, Any]:
    """Report that a tool call failed; the agent gets `ToolFailed` with this error."""
    if not isinstance(error, dict):
        error = {"code": "tool_failed", "message": content.safe_str(error)}
    return await answer(actor, call_id, {"status": "failed", "error": error}, "failed")


async def _outcome(actor: Actor, call_id: str, command_id: str) -> str:
    """`applied`; `late` if another answer came first; `kept` if the task does not wait for it yet."""
    try:
        card = await actor.store.card(actor.namespace, call_id)
    except NotFound:
        return "kept"
    is_first = msgspec.json.decode(card.content).get("ref") == answer_id(call_id, command_id)
    return "applied" if is_first else "late"


async def signal(actor: Actor, task_id: str, name: str, value: Any = None) -> dict[str, Any]:
    """Send a task a signal; it is kept until the task waits for it."""
    encoded = content.encode(value, what="signal")
    reply = await actor.send(
        Signal,
        task_id=task_id,
        name=names.signal_name(name),
        content=encoded,
        content_hash=content.fingerprint(encoded),
    )
    task = reply.unwrap()
    return {"task_id": task.id, "task_status": task.status, "signal": name}


async def open_calls(
    store: Store, namespace: str, *, task_id: str | None = None, limit: int = 50
) -> dict[str, Any]:
    """Tool calls that wait for an answer, the most urgent first."""
    found = await store.open_calls(namespace, task_id=task_id, limit=limit)
    return {"items": [_call_shape(call) for call in found], "next": None}


def _call_shape(call: OpenCall) -> dict[str, Any]:
    return {
        "call_id": call.tool_call_id,
        "task_id": call.task_id,
        "tool": call.tool,
        "deadline": moment(call.deadline),
        "created_at": moment(call.created_at),
    }
