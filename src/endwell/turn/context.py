"""The context: what agent code is given to work with Endwell inside a turn."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from endwell.policy.submitting import Seconds
from endwell.turn.branches import run_branches, thread_branches
from endwell.turn.effects import EffectVerbs
from endwell.turn.recorder import Recorder
from endwell.turn.steps import StepVerbs
from endwell.turn.wait_results import Approved
from endwell.turn.waits import WaitVerbs

WaitFor = Callable[[Coroutine[Any, Any, Any]], Any]


class Context(StepVerbs, EffectVerbs, WaitVerbs):
    """For `async def` agents. A `def` agent gets a `SyncContext` with the same verbs, without await."""

    def __init__(self, recorder: Recorder) -> None:
        task = recorder.task
        self._recorder = recorder
        self.task_id = task.id
        self.attempt_id = recorder.attempt_id
        self.agent = task.agent
        self.agent_key = task.agent_key
        self.idempotency_key = task.idempotency_key
        self.retry_count = task.retry_count


class SyncContext(Context):
    """For `def` agents, which run in a thread: every verb blocks until it is done."""

    # mypy: each verb is the same one, blocking; hence the ignored overrides.

    def __init__(self, recorder: Recorder, wait_for: WaitFor) -> None:
        super().__init__(recorder)
        self._wait_for = wait_for

    def step(self, name: str, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run a function and record what it returns; see `Context.step`."""
        return self._wait_for(super().step(name, fn, *args, **options))

    def effect(self, name: str, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function that changes the outside world, at most once; see `Context.effect`."""
        return self._wait_for(super().effect(name, fn, *args, **options))

    def gather(self, *parts: Callable[[], Any]) -> list[Any]:  # type: ignore[override]
        """Run functions of no argument beside each other, each in a thread and a branch of its own."""
        branches = thread_branches(self._recorder, parts)
        values: list[Any] = self._wait_for(run_branches(self._recorder, branches))
        return values

    def tool(self, tool_name: str, arguments: Any = None, **options: Any) -> Any:
        """Have a tool executed elsewhere; see `Context.tool`."""
        return self._wait_for(super().tool(tool_name, arguments, **options))

    def call(self, agent: str, payload: Any = None, **options: Any) -> Any:
        """Have another agent carry out a task; see `Context.call`."""
        return self._wait_for(super().call(agent, payload, **options))

    def approve(self, question: str, **options: Any) -> Approved:  # type: ignore[override]
        """Ask people to agree; see `Context.approve`."""
        agreed: Approved = self._wait_for(super().approve(question, **options))
        return agreed

    def sleep(self, duration: Seconds, **options: Any) -> None:  # type: ignore[override]
        """Let time pass without holding a worker; see `Context.sleep`."""
        self._wait_for(super().sleep(duration, **options))

    def wait_signal(self, signal: str, **options: Any) -> Any:
        """Wait for a signal to this task; see `Context.wait_signal`."""
        return self._wait_for(super().wait_signal(signal, **options))

    def draft(self, value: Any) -> None:  # type: ignore[override]
        """Keep a partial deliverable; see `Context.draft`."""
        self._wait_for(super().draft(value))

    def nudges(self) -> list[str]:  # type: ignore[override]
        """The nudges this task got; see `Context.nudges`."""
        nudges: list[str] = self._wait_for(super().nudges())
        return nudges

    def progress(self, note: str | None = None) -> None:  # type: ignore[override]
        """Record a sign of progress; see `Context.progress`."""
        self._wait_for(super().progress(note))
