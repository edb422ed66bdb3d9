"""A turn that waits, messages to it, and the facts of its answers, for tests that pin every field."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from endwell.model import facts as f
from endwell.model.card import Card
from endwell.model.content import fingerprint
from endwell.model.message import Message, Report, packed_report
from endwell.model.moments import SECOND
from endwell.model.wait import WaitStatus
from tests.machine.stages import NOW, call, task_waiting_for, tool

DAY = 86_400 * SECOND
AT = NOW + 60 * SECOND
TOLD = {"code": "tool_timeout", "message": "no answer came in time"}
NAP, GO = call("timer", "nap"), call("signal", "go", name="go")
SUSPENDED = task_waiting_for(tool("w1"), tool("w2", 90))


def message(kind: Any, about: str, report: Report, **changes: Any) -> Message:
    """One to the task t, while it waits in its first turn."""
    plain = Message(
        namespace="default",
        id="x",
        agent="coder",
        agent_key=None,
        message_type=kind,
        correlation_id=about,
        channel="main",
        task_id="t",
        turn_id="t.t1",
        turn_epoch=1,
        card_id="t.a.w1~x",
        payload=packed_report(report),
        status="pending",
        created_at=NOW,
    )
    return replace(plain, **changes)


ANSWER = message("tool_result", "t.s.w1", Report(hash="r"))
SIGNAL = message("signal", "t.go.x", Report(name="go", hash="r"), card_id="t.a.signal~x")


def card(card_id: str, kind: Any, content: bytes, digest: str | None = None, at: int = NOW) -> Card:
    return Card("default", card_id, "t", kind, content, digest or fingerprint(content), at)


def record_of(step: str, at: int = NOW, **said: Any) -> Card:
    content = json.dumps({"turn": "t.t1", **said}, sort_keys=True, separators=(",", ":")).encode()
    return card(f"t.s.{step}", "tool.result", content, at=at)


class AnyHash(f.WaitAnswered, frozen=True, kw_only=True, eq=False):
    """Equal to the same fact under any hash, as long as there is one."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, f.WaitAnswered) or not other.result_hash:
            return False
        names = ("tool_call_id", "wait_status", "result_card", "wait_by")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]


def applied(step: str, wait_by: int | None, status: WaitStatus = "applied") -> f.WaitAnswered:
    return AnyHash(tool_call_id=f"t.s.{step}", wait_status=status, result_card=f"t.s.{step}", wait_by=wait_by)


RESUMED = f.TaskResumed(epoch=2, run_at=NOW)
