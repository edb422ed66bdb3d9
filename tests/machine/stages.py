"""Tasks by the stage they are in, and the commands that take them on. All times are whole seconds."""

from __future__ import annotations

from typing import Any

from endwell.machine.decide import decide
from endwell.machine.decision import Decision, Evidence
from endwell.machine.evolve import evolve
from endwell.machine.evolve_rows import EFFECT_FACTS, evolve_effect
from endwell.model import commands as c
from endwell.model.card import call_id
from endwell.model.effect import Effect
from endwell.model.message import Message
from endwell.model.moments import SECOND
from endwell.model.task import ErrorInfo, Task, waits_of
from endwell.policy.limits import Limits
from endwell.policy.retry import RetryPolicy

NOW = 1_000_000 * SECOND
LIMITS = Limits()
EVERYTHING = Evidence()
LAPSED = Evidence(session_is_live=False)
BROKEN = ErrorInfo(code="exception", type="ValueError", message="it broke")
BAD_INPUT = ErrorInfo(code="bad_input", message="no such field", retryable=False)


def tool(step: str = "w1", seconds: int = 60, **options: Any) -> c.Call:
    """A tool to wait for."""
    return call("tool", step, seconds, **{"content": b"{}", "content_hash": "h", **options})


def call(kind: Any, step: str, seconds: int = 60, **options: Any) -> c.Call:
    """Something to wait for; its id is that of the waiting step's record."""
    return c.Call(tool_call_id=f"t.s.{step}", kind=kind, within=seconds * SECOND, **options)


def asked(seconds: int = 60, **options: Any) -> c.Call:
    """An approval that a turn asks for."""
    return call("approval", "ask", seconds, **{"content": b"{}", "content_hash": "shown", **options})


def submit(task_id: str = "t", *, payload_hash: str = "h", **options: Any) -> c.Submit:
    options = {"agent": "coder", "payload": b"{}", **options}
    return c.Submit(
        command_id="submit", namespace="default", task_id=task_id, payload_hash=payload_hash, **options
    )


def to(kind: type[c.TaskCommand], task: Task | None = None, **options: Any) -> Any:
    """A command to the task; what it must bring and the test does not care about is filled in."""
    task_id = task.id if task is not None else "t"
    options = {**_FILLED_IN.get(kind, {}), **options}
    return kind(command_id="x", namespace="default", task_id=task_id, **options)


EFFECT: dict[str, str] = {"step": "1:()mail#1", "key": "mail"}
_FILLED_IN: dict[type[c.TaskCommand], dict[str, Any]] = {
    c.Claim: {"attempt_id": "a1", "session_id": "s1", "actor": "worker"},
    c.Progress: {"attempt_id": "a1"},
    c.Repeat: {"attempt_id": "a1", "about": "the same", "count": 1},
    c.HearNudges: {"attempt_id": "a1"},
    c.Finish: {"attempt_id": "a1", "result": b"1", "result_hash": "r"},
    c.FailTurn: {"attempt_id": "a1", "error": BROKEN},
    c.HandBack: {"attempt_id": "a1"},
    c.Suspend: {"attempt_id": "a1", "calls": (tool(),)},
    c.StartStep: {"attempt_id": "a1", "step": "1:()long#1", "timeout": 3600 * SECOND},
    c.RecordStep: {"attempt_id": "a1", "step": "1:()plan#1", "content": b"1", "content_hash": "r"},
    c.KeepDraft: {"attempt_id": "a1", "content": b"1", "content_hash": "r"},
    c.IntendEffect: {"attempt_id": "a1", **EFFECT, "args_hash": "a", "timeout": 60 * SECOND},
    c.FinishEffect: {"attempt_id": "a1", **EFFECT, "content": b"1", "content_hash": "r"},
    c.DoubtEffect: {"attempt_id": "a1", "key": "mail", "reason": "it timed out"},
    c.SettleEffect: {"key": "mail", "verdict": "done", "actor": "ada"},
    c.Answer: {"tool_call_id": "t.s.w1", "content": b"1", "content_hash": "r"},
    c.Signal: {"name": "go", "content": b"1", "content_hash": "r"},
    c.Disown: {"parent_id": "p"},
    c.Reclaim: {"attempt_id": "a1", "session_id": "s1", "actor": "pmo"},
    c.ClockFired: {"actor": "pmo"},
    c.Block: {"reason": "look_at_it"},
    c.Replay: {"new_task_id": "t-again", "payload": b"{}", "payload_hash": "h", "actor": "ada"},
    c.Approve: {"actor": "ada"},
    c.Reject: {"actor": "ada"},
    c.Cancel: {"actor": "ada"},
    c.RunNow: {"actor": "ada"},
    c.Abandon: {"actor": "ada"},
}


def fold(task: Task | None, decision: Decision, now: int, task_id: str = "t") -> Task:
    """The task after everything that was decided."""
    for fact in decision.facts:
        task = evolve(task, fact, now, namespace="default", task_id=task_id)
    assert task is not None
    return task


def give(
    task: Task | None,
    command: c.TaskCommand,
    now: int = NOW,
    limits: Limits = LIMITS,
    seen: Evidence = EVERYTHING,
) -> Task:
    """The task after a command that must not be refused."""
    decision = decide(task, command, now, limits, seen)
    assert decision.refusal is None, decision.refusal
    return fold(task, decision, now, command.task_id) if decision.facts or task is None else task


def offer(task: Task, kind: type[c.TaskCommand], now: int = NOW, **options: Any) -> Decision:
    """What the machine says to such a command under the default limits."""
    return decide(task, to(kind, task, **options), now, LIMITS)


def clock_fires(task: Task, now: int | None = None, limits: Limits = LIMITS) -> Task:
    """The task after a supervisor looked at it, by default just when its clock has passed."""
    at = now if now is not None else task.clock_at
    assert at is not None
    return give(task, to(c.ClockFired, task), at, limits, waiting_cards(task))


def retrying(max_retries: int, *delays: float) -> Limits:
    return Limits(retry=RetryPolicy(max_retries=max_retries, delays=delays or (1.0,), jitter=0))


def queued_task(**options: Any) -> Task:
    return give(None, submit(**options))


def task_awaiting_approval(**options: Any) -> Task:
    return give(None, submit(**{"approval_within": 3600 * SECOND, **options}))


def dispatched_task(**options: Any) -> Task:
    task = queued_task(**options)
    return give(task, to(c.Dispatch, task))


def running_task(**options: Any) -> Task:
    task = dispatched_task(**options)
    return give(task, to(c.Claim, task))


def suspended_task(*deadlines: int) -> Task:
    """Waits for the tools w1, w2, …, due after these many seconds."""
    return task_waiting_for(
        *(tool(f"w{number}", after) for number, after in enumerate(deadlines or (60,), 1))
    )


def task_waiting_for(*calls: c.Call) -> Task:
    task = running_task()
    return give(task, to(c.Suspend, task, calls=calls))


def waiting_cards(task: Task) -> Evidence:
    """A sight in which every `tool.call` card is there."""
    return Evidence(calls=frozenset(call_id(wait.tool_call_id) for wait in waits_of(task)))


def deliver(message: Message) -> c.Deliver:
    """The command that hands a message on."""
    return c.Deliver(command_id="d", namespace="default", task_id="t", message_id=message.id)


def seeing(*messages: Message) -> Evidence:
    """A sight of the inbox."""
    return Evidence(messages=messages)


def effect_after(effect: Effect | None, task: Task, decision: Decision, now: int = NOW) -> Effect | None:
    """The effect's row after everything that was decided."""
    for fact in decision.facts:
        if isinstance(fact, EFFECT_FACTS):
            effect = evolve_effect(effect, fact, task, now)
        task = evolve(task, fact, now)
    return effect


def reclaimed_task() -> Task:
    task = running_task()
    return give(task, to(c.Reclaim, task), seen=LAPSED)


def escalated_task() -> Task:
    """Blocked until a person acts; that person has accepted nothing yet."""
    task = queued_task()
    return give(task, to(c.Block, task, owner="ada"))


def task_held_by_a_person() -> Task:
    return give(escalated_task(), to(c.Assign, owner="ada"))


def cooling_task(seconds: int = 60) -> Task:
    task = queued_task()
    return give(task, to(c.Block, task, cooldown=seconds * SECOND))


def task_to_retry() -> Task:
    task = running_task()
    return give(task, to(c.FailTurn, task))


def succeeded_task() -> Task:
    task = running_task()
    return give(task, to(c.Finish, task))


def dead_letter() -> Task:
    task = running_task()
    return give(task, to(c.FailTurn, task, error=BAD_INPUT))


def cancelled_task() -> Task:
    task = queued_task()
    return give(task, to(c.Cancel, task))


def timed_out_task() -> Task:
    return clock_fires(queued_task())


LIVE_STAGES = (
    task_awaiting_approval,
    queued_task,
    dispatched_task,
    running_task,
    suspended_task,
    escalated_task,
    task_held_by_a_person,
    cooling_task,
    task_to_retry,
)
ENDED_STAGES = (succeeded_task, dead_letter, cancelled_task, timed_out_task)
