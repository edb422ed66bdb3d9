"""The context: what agent code is given to speak with Endwell about the turn that it is in."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from endwell.policy.submitting import Seconds
from endwell.turn.branches import gathered, thread_parts
from endwell.turn.effects import EffectVerbs
from endwell.turn.recorder import Recorder
from endwell.turn.steps import StepVerbs
from endwell.turn.wait_results import Approved
from endwell.turn.waits import WaitVerbs

Wait = Callable[[Coroutine[Any, Any, Any]], Any]


class Context(StepVerbs, EffectVerbs, WaitVerbs):
    """For `async def` agents. A `def` agent gets a `SyncContext` with the same verbs, without await."""

    def __init__(self, bench: Recorder) -> None:
        task = bench.task
        self._bench = bench
        self.task_id = task.id
        self.attempt_id = bench.attempt_id
        self.agent = task.agent
        self.agent_key = task.agent_key
        self.idempotency_key = task.idempotency_key
        self.retry_count = task.retry_count


class SyncContext(Context):
    """For `def` agents, which run in a thread: every verb blocks until it is done."""

    # mypy: each verb is the same one, blocking; hence the ignored overrides.

    def __init__(self, bench: Recorder, wait: Wait) -> None:
        super().__init__(bench)
        self._wait = wait

    def step(self, name: str, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run a function and record what it returns; see `Context.step`."""
        return self._wait(super().step(name, fn, *args, **options))

    def effect(self, name: str, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function that changes the outside world, at most once; see `Context.effect`."""
        return self._wait(super().effect(name, fn, *args, **options))

    def gather(self, *parts: Callable[[], Any]) -> list[Any]:  # type: ignore[override]
        """Run functions of no argument beside each other, each in a thread and a branch of its own."""
        found: list[Any] = self._wait(gathered(self._bench, thread_parts(self._bench, parts)))
        return found

    def tool(self, tool_name: str, arguments: Any = None, **options: Any) -> Any:
        """Have a tool executed elsewhere; see `Context.tool`."""
        return self._wait(super().tool(tool_name, arguments, **options))

    def call(self, agent: str, payload: Any = None, **options: Any) -> Any:
        """Have another agent carry out a task; see `Context.call`."""
        return self._wait(super().call(agent, payload, **options))

    def approve(self, question: str, **options: Any) -> Approved:  # type: ignore[override]
        """Ask people to agree; see `Context.approve`."""
        agreed: Approved = self._wait(super().approve(question, **options))
        return agreed

    def sleep(self, duration: Seconds, **options: Any) -> None:  # type: ignore[override]
        """Let time pass without holding a worker; see `Context.sleep`."""
        self._wait(super().sleep(duration, **options))

    def wait_signal(self, signal: str, **options: Any) -> Any:
        """Wait until somebody tells this task something; see `Context.wait_signal`."""
        return self._wait(super().wait_signal(signal, **options))

    def draft(self, value: Any) -> None:  # type: ignore[override]
        """Keep a partial deliverable; see `Context.draft`."""
        self._wait(super().draft(value))

    def nudges(self) -> list[str]:  # type: ignore[override]
        """What the agent was told; see `Context.nudges`."""
        heard: list[str] = self._wait(super().nudges())
        return heard

    def progress(self, note: str | None = None) -> None:  # type: ignore[override]
        """Say that the turn is getting somewhere; see `Context.progress`."""
        self._wait(super().progress(note))
