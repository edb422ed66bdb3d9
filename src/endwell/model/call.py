"""What a suspending turn waits for."""

from __future__ import annotations

import msgspec

from endwell.model.task import WaitKind


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
