"""What is told to tasks from outside: answers to their tool calls, and signals."""

from __future__ import annotations

from typing import Any

import msgspec

from endwell.errors import NotFound
from endwell.model import content, names
from endwell.model.card import answer_id, task_of_call
from endwell.model.commands import Answer, Signal
from endwell.model.moments import moment
from endwell.runtime.base import Runtime
from endwell.store.contract import Store
from endwell.store.reads import OpenCall


class Answers:
    """Answers of one named person or program in one namespace."""

    def __init__(self, store: Store, runtime: Runtime, *, namespace: str, actor: str) -> None:
        self._store = store
        self._runtime = runtime
        self._namespace = namespace
        self._actor = actor

    async def answer(self, call_id: str, value: Any = None) -> dict[str, Any]:
        """Give a tool call its result. The first answer counts; the outcome says whether this was it."""
        return await self._answer(call_id, value, "success")

    async def fail(self, call_id: str, error: Any) -> dict[str, Any]:
        """Tell a tool call that it failed; the agent sees `ToolFailed` with this error."""
        said = (
            error if isinstance(error, dict) else {"code": "tool_failed", "message": content.safe_str(error)}
        )
        return await self._answer(call_id, {"status": "failed", "error": said}, "failed")

    async def _answer(self, call_id: str, value: Any, status: str) -> dict[str, Any]:
        encoded = content.encode(value, what="answer")
        command_id = self._runtime.ids.new()
        command = Answer(
            command_id=command_id,
            namespace=self._namespace,
            actor=self._actor,
            task_id=task_of_call(call_id),
            tool_call_id=call_id,
            content=encoded,
            content_hash=content.fingerprint(encoded),
            status=status,
        )
        try:
            task = (await self._store.one(command)).unwrap()
        except NotFound:
            raise NotFound(
                f"there is no call {content.shown(call_id)}", code="no_such_call", hint="endwell tool list"
            ) from None
        outcome = "late" if task.is_ended else await self._outcome(call_id, command_id)
        return {"call_id": call_id, "task_id": task.id, "task_status": task.status, "outcome": outcome}

    async def _outcome(self, call_id: str, command_id: str) -> str:
        """`applied`; `late` when another answer had counted; `kept` while nobody waits for it yet."""
        try:
            record = msgspec.json.decode((await self._store.card(self._namespace, call_id)).content)
        except NotFound:
            return "kept"
        return "applied" if record.get("ref") == answer_id(call_id, command_id) else "late"

    async def signal(self, task_id: str, name: str, value: Any = None) -> dict[str, Any]:
        """Tell a task something by name; kept until it waits for it."""
        encoded = content.encode(value, what="signal")
        command = Signal(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._actor,
            task_id=task_id,
            name=names.signal_name(name),
            content=encoded,
            content_hash=content.fingerprint(encoded),
        )
        task = (await self._store.one(command)).unwrap()
        return {"task_id": task.id, "task_status": task.status, "signal": name}


async def open_calls(
    store: Store, namespace: str, *, task_id: str | None = None, limit: int = 50
) -> dict[str, Any]:
    """Tool calls that somebody is to answer, the most urgent first."""
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
