"""A task with something in every column, and what a fact moves in it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict, replace

from endwell.machine.evolve import evolve
from endwell.model import facts as f
from endwell.model.approval import OpenApproval
from endwell.model.inside import Inside, inside_of, packed_inside
from endwell.model.task import ErrorInfo, Task, packed_waits, waits_of
from endwell.model.wait import Wait

AT = 1000
STAMPED = ("version", "updated_at", "clock_at", "clock_rule")
OWN = OpenApproval("t", "payload", ("ada", "bob"), 2, ("bob",))
QUESTION = OpenApproval("t.s.ask", "shown", ("eve", "zoe"), 2, ("zoe",))
ASK, TOOL = Wait("t.s.ask", "approval", 60), Wait("t.s.w1", "tool", 50, name="look")
INSIDE = Inside(
    run=2,
    steps=3,
    intents=("mail", "post"),
    draft="draft",
    draft_hash="draft-hash",
    asked=(OWN, QUESTION),
    children=1,
    version="v1",
    doing=(("long", 70), ("mail", 80)),
    nudges=1,
    is_offered=True,
)
BARE = Task("n", "t", "coder", ends_by=99_000)
FULL = replace(
    BARE,
    status="blocked",
    reason="reason",
    owner="owner",
    error="error",
    deliverable_card="card",
    dead_letter="dead",
    superseded_by="t9",
    turn_id="t.t3",
    turn_number=3,
    redelivery="reclaim",
    attempt_id="a1",
    session_id="s1",
    slot=1,
    waits=packed_waits((ASK, TOOL)),
    inside=packed_inside(INSIDE),
    retry_count=2,
    dispatch_count=3,
    crash_count=1,
    crash_times="7",
    run_at=10,
    ring_at=11,
    dispatch_by=12,
    progress_by=13,
    wait_by=14,
    suspend_by=15,
    remind_at=16,
    expire_at=17,
    recover_at=18,
    guard_at=19,
    guard_reason="guard",
    held_since=20,
    epoch=4,
    version=9,
    head_hash=b"head",
    started_at=5,
    ended_at=6,
    updated_at=21,
)
NEWS = ErrorInfo(code="new", message="it broke")
LET_GO = dict.fromkeys(("attempt_id", "session_id", "slot", "ring_at", "dispatch_by", "progress_by"))
TURN_OVER = {**LET_GO, **dict.fromkeys(("turn_id", "redelivery", "waits", "wait_by", "suspend_by"))}
ENDED = dict.fromkeys(("remind_at", "recover_at", "guard_at", "guard_reason", "held_since"))


def moved(task: Task, fact: f.Fact) -> dict[str, Any]:
    """The columns that a fact moves, with their new values; what is packed in a column is unpacked."""
    after = evolve(task, fact, AT)
    new = {name: value for name, value in asdict(after).items() if name not in STAMPED}
    changed = {name: value for name, value in new.items() if value != getattr(task, name)}
    if changed.get("waits") is not None:
        changed["waits"] = waits_of(after)
    if "inside" in changed:
        was, now = asdict(inside_of(task)), asdict(inside_of(after))
        del changed["inside"]
        changed |= {f"inside.{name}": value for name, value in now.items() if value != was[name]}
    return changed
