"""What follows a suspension: answers that came meanwhile, and children that could not be created."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from endwell.model import commands as c
from endwell.model.content import fingerprint
from endwell.runtime.base import Runtime
from endwell.store.contract import Store
from endwell.store.derived import follow_up
from endwell.store.rows import Reply

Settled = Sequence[tuple[c.TaskCommand, Reply]]
"""The commands of an ending that the store has taken, each with its reply."""


async def after(store: Store, runtime: Runtime, actor: str, settled: Settled) -> list[c.Command]:
    """The commands that follow a `Suspend` which was taken."""
    suspended, reply = settled[-1]
    if reply.refusal is not None:
        return []
    refused = [
        _refused(runtime.ids.new(), actor, suspended, submit, answer)
        for submit, answer in settled
        if isinstance(submit, c.Submit) and submit.parent_call and answer.refusal is not None
    ]
    waiting = await store.pending_messages(suspended.namespace, suspended.task_id)
    return [*refused, *(follow_up(message, actor) for message in waiting)]


def _refused(command_id: str, actor: str, parent: c.TaskCommand, submit: c.Submit, reply: Reply) -> c.Answer:
    """A child that was refused answers its call at once, so that its parent does not wait for nobody."""
    content = msgspec.json.encode(reply.refusal.as_dict() if reply.refusal else None, order="sorted")
    return c.Answer(
        command_id=command_id,
        namespace=parent.namespace,
        actor=actor,
        task_id=parent.task_id,
        tool_call_id=submit.parent_call or "",
        content=content,
        content_hash=fingerprint(content),
        status="failed",
    )
