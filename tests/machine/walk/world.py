"""A small world around the machine: its limits, and everything that anybody may try in it.

Two worker sessions, each with a lease that may lapse and be renewed at any moment. Two supervisors: each may
at any moment fire a clock or reclaim, also from what it saw long ago (an attempt that has been
replaced, a lease that has been renewed); as they carry no state of their own, giving each command at every
moment is both of them. Time passes in ticks of one second, and may pass without anybody looking. Answers,
signals and people come at any moment, twice, late, and with no right to. A neighbour is another task that
wants the same effect.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from endwell.model import commands as c
from endwell.model.card import call_id
from endwell.model.facts import RETURNED
from endwell.model.moments import SECOND
from endwell.model.task import ErrorInfo, Task
from endwell.policy.approval import Guard
from endwell.policy.limits import Limits
from endwell.policy.retry import RetryPolicy
from tests.machine.walk.canonical import CREATED, HOLDER, NEIGHBOUR, NOW, STALE
from tests.machine.walk.scene import Scene

TICK: Final = SECOND
SESSIONS: Final = ("s1", "s2")
BROKEN: Final = ErrorInfo(code="exception", message="it broke")
BAD_INPUT: Final = ErrorInfo(code="bad_input", retryable=False)
REFUSED_OUTPUT: Final = ErrorInfo(code="bad_result")
REJECTED: Final = ErrorInfo(code="approval_rejected", retryable=False)
EXPIRED: Final = ErrorInfo(code="approval_expired", retryable=False)
SIGNAL: Final = "go"
LATE_RULES: Final = (Guard(within_seconds=1.0),)
NEIGHBOUR_TASK: Final = Task(
    "n",
    "neighbour",
    "coder",
    created_at=CREATED,
    status="running",
    turn_id="neighbour.t1",
    turn_number=1,
    attempt_id=NEIGHBOUR,
    session_id="s1",
    dispatch_count=1,
    progress_by=NOW + 10 * TICK,
    ends_by=NOW + 10 * TICK,
    clock_at=NOW + 10 * TICK,
    clock_rule="ends_by",
)


class World(msgspec.Struct, frozen=True, kw_only=True):
    """How large the world is. `suspensions` are what turns try to wait for; the others switch parts on."""

    name: str
    limits: Limits
    tasks: int = 1
    submits: tuple[dict[str, Any], ...] = ({},)
    suspensions: tuple[tuple[c.Call, ...], ...] = ()
    retry_after: tuple[int | None, ...] = (None,)
    cooldowns: tuple[int, ...] = (1,)
    effects: tuple[str, ...] = ()
    with_steps: bool = False
    with_circles: bool = False
    with_neighbour: bool = False
    people: tuple[str, ...] = ("bob",)
    leases_hold: bool = False
    rule_comes_late: bool = False

    @property
    def calls(self) -> tuple[c.Call, ...]:
        """Everything that any turn may wait for."""
        return tuple({call.tool_call_id: call for calls in self.suspensions for call in calls}.values())

    @property
    def parents(self) -> tuple[str, ...]:
        """Tasks that may be the parent of this one, and another task."""
        found = {options["parent_id"] for options in self.submits if "parent_id" in options}
        return (*found, "q") if found else ()

    @property
    def cards(self) -> frozenset[str]:
        """The `tool.call` cards that a clock finds."""
        return frozenset(call_id(call.tool_call_id) for call in self.calls if call.content is not None)


class Offer(msgspec.Struct, frozen=True):
    """A command to try, and its name in the table of cells."""

    command: c.TaskCommand
    cell: str
    session: int | None = None
    is_neighbours: bool = False
    rules: tuple[Guard, ...] = ()


def small_limits(**changes: Any) -> Limits:
    """Limits of a few ticks, so that all their combinations can be walked through."""
    values: dict[str, Any] = {
        "deadline": 4,
        "ring_after": 1,
        "dispatch_timeout": 2,
        "active_reap": 2,
        "suspend_grace": 1,
        "step_grace": 1,
        "effect_margin": 1,
        "remind_every": 2,
        "crash_window": 3,
        "stall_after": 1,
        **changes,
    }
    counted = {"runaway_limit", "crash_limit", "repeat_limit", "waits_in_row"} & set(values)
    counts: dict[str, Any] = {name: values.pop(name) for name in counted}
    retries = values.pop("max_retries", 1)
    ticks = {name: None if value is None else value * TICK for name, value in values.items()}
    retry = RetryPolicy(max_retries=retries, base_seconds=1.0, jitter=0)
    chosen: dict[str, Any] = {"runaway_limit": 4, "crash_limit": 2, "repeat_limit": 1, **counts, **ticks}
    return Limits(retry=retry, **chosen)


def call(kind: str, step: str, ticks: int, **options: Any) -> c.Call:
    """Something to wait for; a tool's card is missing unless it has content."""
    return c.Call(tool_call_id=f"t.s.{step}", kind=kind, within=ticks * TICK, **options)  # type: ignore[arg-type]


def _command(kind: type[c.TaskCommand], **options: Any) -> c.TaskCommand:
    options = {"task_id": "t", "actor": "bob", **options}
    return kind(command_id="x", namespace="n", **options)


def _submit(*, payload_hash: str = "h", **options: Any) -> c.TaskCommand:
    return _command(c.Submit, agent="coder", agent_key="k", payload=b"", payload_hash=payload_hash, **options)


def _fenced(attempt: str, world: World) -> list[c.TaskCommand]:
    """Everything that the holder of a turn may do; an old attempt tries all of it too."""
    failing = [(BROKEN, after) for after in world.retry_after] + [(BAD_INPUT, None)]
    if world.with_steps:
        failing.append((REFUSED_OUTPUT, None))
    if any(call.kind == "approval" for call in world.calls):
        failing += [(REJECTED, None), (EXPIRED, None)]
    return [
        _command(c.Progress, attempt_id=attempt),
        _command(c.Finish, attempt_id=attempt, result=b"1", result_hash="r"),
        *(_command(c.FailTurn, attempt_id=attempt, error=why, retry_after=at) for why, at in failing),
        _command(c.HandBack, attempt_id=attempt),
        _command(c.HandBack, attempt_id=attempt, reason=RETURNED),
        *(_command(c.Suspend, attempt_id=attempt, calls=calls) for calls in (*world.suspensions, ())),
        *(_steps(attempt) if world.with_steps else ()),
        *(_circles(attempt) if world.with_circles else ()),
        *(command for key in world.effects for command in _effect(key, attempt)),
    ]


def _circles(attempt: str) -> list[c.TaskCommand]:
    return [
        _command(c.Repeat, attempt_id=attempt, about="the same", count=1),
        _command(c.Repeat, attempt_id=attempt, about="the same", count=2),
        _command(c.Progress, attempt_id=attempt, without_news=2 * TICK),
        _command(c.HearNudges, attempt_id=attempt),
    ]


def _steps(attempt: str) -> list[c.TaskCommand]:
    return [
        _command(c.StartStep, attempt_id=attempt, step="long", timeout=2 * TICK),
        _command(c.RecordStep, attempt_id=attempt, step="long", content=b"1", content_hash="r"),
        _command(c.RecordStep, attempt_id=attempt, step="short", result_type="retryable_failure"),
        _command(c.KeepDraft, attempt_id=attempt, content=b"1", content_hash="r"),
    ]


def _effect(key: str, attempt: str, **whose: str) -> list[c.TaskCommand]:
    settle = {"key": key, "attempt_id": attempt, **whose}
    named = {"step": "effect", **settle}
    return [
        _command(c.IntendEffect, args_hash="a", timeout=TICK, **named),
        _command(c.IntendEffect, args_hash="other", timeout=TICK, **named),
        _command(c.FinishEffect, content=b"1", content_hash="r", **named),
        _command(c.DoubtEffect, reason="it timed out", **settle),
        _command(c.SettleEffect, verdict="done", **settle),
        _command(c.SettleEffect, verdict="done", holder_gone=True, **settle),
        _command(c.SettleEffect, verdict="not_done", **settle),
        _command(c.SettleEffect, verdict="not_done", call_ended=True, **settle),
        _command(c.SettleEffect, verdict="not_done", holder_gone=True, **settle),
        _command(c.SettleEffect, verdict="not_done", may_repeat=True, **settle),
        _command(
            c.Block,
            reason="effect_unknown",
            owner="ada",
            attempt_id=attempt,
            effect_key=key,
            task_id=whose.get("task_id", "t"),
        ),
    ]


def _from_anybody(world: World) -> list[c.TaskCommand]:
    return [
        _submit(),
        _submit(payload_hash="another"),
        _command(c.ClockFired),
        *([_command(c.ClockFired, away=TICK)] if world.with_circles else ()),
        *(_command(kind, actor=who) for kind in (c.Approve, c.Reject) for who in world.people),
        _command(c.Cancel),
        _command(c.RunNow),
        _command(c.Unblock),
        _command(c.Assign, owner="ada"),
        _command(c.Block, reason="held", owner="ada"),
        *(_command(c.Block, reason="cooling", cooldown=ticks * TICK) for ticks in world.cooldowns),
        _command(c.Replay, new_task_id="t-again", payload=b"", payload_hash="h"),
        _command(c.Abandon),
        *(_to_waits(world) if world.suspensions else ()),
        *(command for key in world.effects for command in _settled_by_a_person(key)),
        *(_command(c.Disown, parent_id=parent) for parent in world.parents),
    ]


def _to_waits(world: World) -> list[c.TaskCommand]:
    answer: dict[str, Any] = {"content": b"1", "content_hash": "r"}
    calls = [call.tool_call_id for call in world.calls if call.kind != "timer"]
    asked = [call for call in world.calls if call.kind == "approval"]
    return [
        *(_command(c.Answer, tool_call_id=call_id, **answer) for call_id in (*calls, "q.s.unknown")),
        *(_command(c.Signal, name=call.name, **answer) for call in world.calls if call.kind == "signal"),
        *(
            _command(kind, approval_id=call.tool_call_id, actor=who)
            for kind in (c.Approve, c.Reject)
            for call in asked
            for who in world.people
        ),
        *(_command(c.Approve, approval_id=call.tool_call_id, shown_hash="x", actor="ada") for call in asked),
        _command(c.InjectTimeout),
        _command(c.Deliver, message_id="nothing"),
        _command(c.SkipMessage, message_id="nothing", why="missing_channel"),
    ]


def _settled_by_a_person(key: str) -> list[c.TaskCommand]:
    return [
        _command(c.SettleEffect, key=key, verdict=v, actor="ada") for v in ("done", "not_done", "abandon")
    ]


def cell_name(command: c.TaskCommand, by: str = "") -> str:
    """By whom a command is given counts only where only the holder may."""
    name = type(command).__name__
    return f"{name} by {by}" if by and isinstance(command, c.AttemptCommand) else name


class Offers:
    """What may be tried on a task, made once per world."""

    def __init__(self, world: World) -> None:
        stale = [*_fenced(STALE, world), self._reclaim(STALE, "s1", "lease_lapsed")]
        held = [*_fenced(HOLDER, world), self._reclaim(HOLDER, "s1", "unnamed")]
        anybody = [Offer(command, cell_name(command)) for command in _from_anybody(world)]
        self._from_anybody = [
            *anybody,
            *(Offer(command, cell_name(command, "stale")) for command in stale),
            *self._from_the_neighbour(world),
        ]
        self._from_holder = [Offer(command, cell_name(command, "holder")) for command in held]
        self._with_sight = [
            Offer(_command(c.Dispatch, slot=1), "Dispatch"),
            *(
                Offer(_command(c.Claim, attempt_id=HOLDER, session_id=session, slot=1), "Claim", number)
                for number, session in enumerate(SESSIONS)
            ),
        ]
        late = [msgspec.structs.replace(offer, rules=LATE_RULES) for offer in self._with_sight[:2]]
        self._late = late if world.rule_comes_late else []
        self._reclaims = {
            session: Offer(self._reclaim(HOLDER, session, "lease_lapsed"), "Reclaim by holder", number)
            for number, session in enumerate(SESSIONS)
        }
        self.first = [
            *(Offer(_submit(**self._in_ticks(options)), "Submit") for options in world.submits),
            *(o for o in self._from_anybody if o.cell != "Submit" and not o.is_neighbours),
        ]

    def to(self, scene: Scene) -> list[Offer]:
        """Commands whose outcome depends on the scene alone."""
        offers = self._from_anybody
        if scene.task is not None and scene.task.attempt_id == HOLDER:
            offers = offers + self._from_holder
        if scene.inbox:
            offers = [*offers, *(self._deliver(message.id) for message in scene.inbox)]
            # signals are many of one name: which of them is skipped would have to be told
            others = [message for message in scene.inbox if message.message_type != "signal"]
            offers += [self._skip(message.id) for message in others[:1]]
        return offers

    def to_with_sight(self, task: Task | None) -> list[Offer]:
        """Commands for which the door also looks at a session or at the agent's key."""
        if task is not None and task.dispatch_count == 0:
            return [*self._with_sight, *self._late]
        if task is None or task.session_id is None:
            return self._with_sight
        return [*self._with_sight, self._reclaims[task.session_id]]

    @staticmethod
    def _from_the_neighbour(world: World) -> list[Offer]:
        keys = world.effects if world.with_neighbour else ()
        given = [each for key in keys for each in _effect(key, NEIGHBOUR, task_id=NEIGHBOUR_TASK.id)]
        return [Offer(each, "", is_neighbours=True) for each in given if not isinstance(each, c.Block)]

    @staticmethod
    def _deliver(message_id: str) -> Offer:
        return Offer(_command(c.Deliver, message_id=message_id), "Deliver")

    @staticmethod
    def _skip(message_id: str) -> Offer:
        command = _command(c.SkipMessage, message_id=message_id, why="missing_channel")
        return Offer(command, "SkipMessage")

    @staticmethod
    def _reclaim(attempt: str, session: str, reason: str) -> c.TaskCommand:
        return _command(c.Reclaim, attempt_id=attempt, session_id=session, reason=reason)

    @staticmethod
    def _in_ticks(options: dict[str, Any]) -> dict[str, Any]:
        times = ("delay", "deadline", "approval_within")
        return {name: value * TICK if name in times else value for name, value in options.items()}
