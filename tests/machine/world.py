"""A small world around the machine: its limits, and everything that anybody may try in it.

Two worker sessions, each with a lease that may lapse and be renewed at any moment. Two supervisors: each may
at any moment fire a clock or reclaim, also from what it saw long ago (an attempt that has been
replaced, a lease that has been renewed); as they carry no state of their own, giving each command at every
moment is both of them. Time passes in ticks of one second, and may pass without anybody looking.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from endwell.model import commands as c
from endwell.model.status import Status
from endwell.model.task import ErrorInfo, Task, Wait, waits_of
from endwell.policy.limits import SECOND, Limits
from endwell.policy.retry import RetryPolicy
from tests.machine.canonical import HOLDER, NOW

TICK: Final = SECOND
SESSIONS: Final = ("s1", "s2")
STALE: Final = "an old attempt"
BROKEN: Final = ErrorInfo(code="exception", message="it broke")
BAD_INPUT: Final = ErrorInfo(code="bad_input", retryable=False)


class World(msgspec.Struct, frozen=True, kw_only=True):
    """How large the world is. `waits` are the suspensions that agents try: deadlines in ticks."""

    name: str
    limits: Limits
    tasks: int = 1
    submits: tuple[dict[str, int], ...] = ({},)
    waits: tuple[tuple[int, ...], ...] = ((1,), (1, 2))
    retry_after: tuple[int | None, ...] = (None,)
    cooldown: int = 1


class Offer(msgspec.Struct, frozen=True):
    """A command that somebody gives, and how the table of cells calls it."""

    command: c.TaskCommand
    cell: str
    session: int | None = None


def small_limits(**changes: Any) -> Limits:
    """Limits of a few ticks, so that all their combinations can be walked through."""
    ticks = ("deadline", "ring_after", "dispatch_timeout", "active_reap", "suspend_grace", "remind_every")
    values: dict[str, Any] = {
        "deadline": 4,
        "ring_after": 1,
        "dispatch_timeout": 2,
        "active_reap": 2,
        "suspend_grace": 1,
        "remind_every": 2,
        "crash_window": 3,
        **changes,
    }
    for name in (*ticks, "crash_window"):
        values[name] = None if values[name] is None else values[name] * TICK
    values["retry"] = RetryPolicy(max_retries=values.pop("max_retries", 1), base_seconds=1.0, jitter=0)
    return Limits(**{"runaway_limit": 4, "crash_limit": 2, **values})


def _command(kind: type[c.TaskCommand], **options: Any) -> c.TaskCommand:
    return kind(command_id="x", namespace="n", task_id="t", actor="somebody", **options)


def _submit(*, payload_hash: str = "h", **options: Any) -> c.TaskCommand:
    return _command(c.Submit, agent="coder", agent_key="k", payload=b"", payload_hash=payload_hash, **options)


def _fenced(attempt: str, world: World) -> list[c.TaskCommand]:
    """Everything that the holder of a turn may do; an old attempt tries all of it too."""
    failing = [(BROKEN, after) for after in world.retry_after] + [(BAD_INPUT, None)]
    suspending = [
        tuple(Wait(f"w{number}", "tool", NOW + at * TICK) for number, at in enumerate(deadlines, 1))
        for deadlines in (*world.waits, ())
    ]
    return [
        _command(c.Progress, attempt_id=attempt),
        _command(c.Finish, attempt_id=attempt, result=b"1", result_hash="r"),
        *(_command(c.FailTurn, attempt_id=attempt, error=why, retry_after=at) for why, at in failing),
        _command(c.HandBack, attempt_id=attempt),
        *(_command(c.Suspend, attempt_id=attempt, waits=waits) for waits in suspending),
    ]


def _from_anybody(world: World) -> list[c.TaskCommand]:
    return [
        _submit(),
        _submit(payload_hash="another"),
        _command(c.ClockFired),
        _command(c.Approve),
        _command(c.Reject),
        _command(c.Cancel),
        _command(c.RunNow),
        _command(c.Block, reason="held", owner="ada"),
        _command(c.Block, reason="cooling", cooldown=world.cooldown * TICK),
        _command(c.Replay, new_task_id="t-again", payload=b"", payload_hash="h"),
        _command(c.Abandon),
        *(_command(c.Answer, tool_call_id=wait, result_card="card") for wait in ("w1", "w2", "nothing")),
    ]


def cell_name(command: c.TaskCommand, by: str = "") -> str:
    name = type(command).__name__
    return f"{name} by {by}" if by else name


class Offers:
    """What may be tried on a task, made once per world."""

    def __init__(self, world: World) -> None:
        stale = [*_fenced(STALE, world), self._reclaim(STALE, "s1", "lease_lapsed")]
        held = [*_fenced(HOLDER, world), self._reclaim(HOLDER, "s1", "unnamed")]
        anybody = [Offer(command, cell_name(command)) for command in _from_anybody(world)]
        self._from_anybody = [*anybody, *(Offer(command, cell_name(command, "stale")) for command in stale)]
        self._from_holder = [Offer(command, cell_name(command, "holder")) for command in held]
        self._with_sight = [
            Offer(_command(c.Dispatch, slot=1), "Dispatch"),
            *(
                Offer(_command(c.Claim, attempt_id=HOLDER, session_id=session, slot=1), "Claim", number)
                for number, session in enumerate(SESSIONS)
            ),
        ]
        self._reclaims = {
            session: Offer(self._reclaim(HOLDER, session, "lease_lapsed"), "Reclaim by holder", number)
            for number, session in enumerate(SESSIONS)
        }
        self.first = [
            *(Offer(_submit(**self._in_ticks(options)), "Submit") for options in world.submits),
            *(offer for offer in self._from_anybody if offer.cell != "Submit"),
        ]

    def to(self, task: Task) -> list[Offer]:
        """Commands whose outcome depends on the task alone."""
        return self._from_anybody + (self._from_holder if task.attempt_id == HOLDER else [])

    def to_with_sight(self, task: Task | None) -> list[Offer]:
        """Commands for which the door also looks at a session or at the agent's key."""
        if task is None or task.session_id is None:
            return self._with_sight
        return [*self._with_sight, self._reclaims[task.session_id]]

    @staticmethod
    def _reclaim(attempt: str, session: str, reason: str) -> c.TaskCommand:
        return _command(c.Reclaim, attempt_id=attempt, session_id=session, reason=reason)

    @staticmethod
    def _in_ticks(options: dict[str, int]) -> dict[str, Any]:
        return {name: ticks * TICK for name, ticks in options.items()}


def describe(command: c.TaskCommand) -> str:
    """A command as one reads it in the path to a violation."""
    told = {
        "attempt_id": getattr(command, "attempt_id", None),
        "session_id": getattr(command, "session_id", None),
        "waits": tuple((w.tool_call_id, (w.deadline - NOW) // TICK) for w in getattr(command, "waits", ())),
        "reason": getattr(command, "reason", None),
        "cooldown": getattr(command, "cooldown", None),
        "error": getattr(getattr(command, "error", None), "code", None),
        "tool_call_id": getattr(command, "tool_call_id", None),
    }
    return f"{type(command).__name__}({', '.join(f'{k}={v}' for k, v in told.items() if v)})"


def describe_task(task: Task | None) -> str:
    """A task as one reads it there: what is not at its default, times in ticks from now."""
    if task is None:
        return "no task"
    status: Status = task.status
    counters = f"retry {task.retry_count} dispatch {task.dispatch_count} crash {task.crash_count}"
    clock = "no clock" if task.clock_at is None else f"{task.clock_rule} in {(task.clock_at - NOW) // TICK}"
    waits = " ".join(f"{w.tool_call_id}:{w.wait_status}" for w in waits_of(task))
    return f"{status} ({counters}; {clock}{'; ' + waits if waits else ''})"
