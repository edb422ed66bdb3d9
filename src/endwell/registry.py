"""Registering agents, tools and programs: what an installation's workers can carry out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from endwell.errors import UsageError
from endwell.external.isolated import Isolated, checked_isolation
from endwell.external.programs import Program, any_program, checked_command, checked_environment
from endwell.external.runner import checked_memory, checked_seconds
from endwell.model import names
from endwell.policy.approval import AgentOptions, Approval, checked_guard, checked_risk
from endwell.policy.limits import Limits
from endwell.policy.retry import RetryPolicy
from endwell.policy.submitting import SHORTEST_DEADLINE_SECONDS, Seconds, microseconds
from endwell.runtime.base import Runtime
from endwell.settings import Settings, check, override
from endwell.turn.agents import (
    Agent,
    OnVersionChange,
    agent_of,
    checked_concurrency,
    checked_exceptions,
    checked_timeout,
    checked_version_change,
)
from endwell.turn.function_calls import Duration, seconds_of
from endwell.turn.held_turn import OutsideRunner

F = TypeVar("F", bound=Callable[..., Any])


class Registry:
    """`agents` holds everything by name, tools included."""

    settings: Settings
    runtime: Runtime
    owner: str
    agents: dict[str, Agent]

    def agent(
        self,
        name: str,
        *,
        retries: int | None = None,
        delays: Sequence[float] | None = None,
        give_up_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        concurrency: int | None = None,
        deadline: Seconds | None = None,
        version: str | None = None,
        on_version_change: OnVersionChange = "continue",
        step_timeout: Duration | None = None,
        risk: str | None = None,
        approval: Approval | bool | None = None,
        isolation: str | None = None,
        timeout: Seconds | None = None,
        memory_mb: int | None = None,
    ) -> Callable[[F], F]:
        """Register a function, `async def` or `def`, as an agent.

        `retries` and `delays` (seconds before each retry) override the settings for this agent;
        `concurrency` limits how many of its tasks run at once in the whole installation; `step_timeout`
        is how long each of its steps may take unless the step says otherwise. With `approval`, or a
        `risk` that the settings name, a person must agree before a task starts. With
        `isolation="process"` each turn runs in a process of its own, which is killed when it takes longer
        than `timeout` seconds or more than `memory_mb` of memory.
        """
        names.agent_name(name)
        options = self._options(name, retries, delays, concurrency, version)
        limits = checked_isolation(name, isolation, timeout, memory_mb)

        def outside(function: Callable[..., Any]) -> OutsideRunner | None:
            if limits is None:
                return None
            return Isolated(app=self, agent=name, function=function, runtime=self.runtime, **limits)

        return self._registration(
            name,
            outside,
            give_up_on=checked_exceptions(name, give_up_on),
            deadline=microseconds(deadline, "deadline", least=SHORTEST_DEADLINE_SECONDS),
            step_timeout=None if step_timeout is None else seconds_of(step_timeout, 0, "step_timeout"),
            on_version_change=checked_version_change(name, on_version_change),
            options=AgentOptions(risk=checked_risk(risk), approval=checked_guard(approval)),
            **options,
        )

    def tool(
        self,
        name: str,
        *,
        timeout: Seconds | None = None,
        suspend_timeout: Seconds | None = None,
        retries: int | None = None,
        delays: Sequence[float] | None = None,
        give_up_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        concurrency: int | None = None,
        version: str | None = None,
        risk: str | None = None,
        approval: Approval | bool | None = None,
    ) -> Callable[[F], F]:
        """Register a function as a tool: agents have it executed with `ctx.tool(name, arguments)`.

        Whoever calls it waits for the longest of `worker.suspend_timeout_seconds` and these timeouts.
        """
        names.tool_name(name)
        return self._registration(
            name,
            kind="tool",
            give_up_on=checked_exceptions(name, give_up_on),
            options=AgentOptions(
                timeout_seconds=checked_timeout(timeout, "timeout"),
                suspend_timeout_seconds=checked_timeout(suspend_timeout, "suspend_timeout"),
                risk=checked_risk(risk),
                approval=checked_guard(approval),
            ),
            **self._options(name, retries, delays, concurrency, version),
        )

    def command_agent(
        self,
        name: str,
        argv: Sequence[str],
        *,
        retries: int | None = None,
        delays: Sequence[float] | None = None,
        concurrency: int | None = None,
        deadline: Seconds | None = None,
        version: str | None = None,
        timeout: Seconds | None = None,
        memory_mb: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> None:
        """Register an external program as an agent: JSON on its input, JSON lines on its output.

        It is killed, with everything it has started, after `timeout` seconds, when it is no longer wanted,
        and when the worker dies. `env` is added to the worker's environment.
        """
        names.agent_name(name)
        program = Program(
            runtime=self.runtime,
            argv=checked_command(name, argv),
            env=checked_environment(name, env),
            cwd=cwd,
            timeout=checked_seconds(name, "timeout", timeout),
            memory_mb=checked_memory(name, memory_mb),
        )
        register = self._registration(
            name,
            lambda function: program,
            deadline=microseconds(deadline, "deadline", least=SHORTEST_DEADLINE_SECONDS),
            **self._options(name, retries, delays, concurrency, version),
        )
        register(any_program)

    def _options(
        self,
        name: str,
        retries: int | None,
        delays: Sequence[float] | None,
        concurrency: int | None,
        version: str | None,
    ) -> dict[str, Any]:
        """What all of them may be given."""
        return {
            "retry": self._retry_policy(name, retries, delays),
            "concurrency": checked_concurrency(name, concurrency),
            "version": version,
        }

    def _registration(
        self,
        name: str,
        outside: Callable[[Callable[..., Any]], OutsideRunner | None] = lambda function: None,
        **options: Any,
    ) -> Callable[[F], F]:
        if name in self.agents:
            raise UsageError(f"{self.agents[name].kind} {name!r} is already registered")

        def register(function: F) -> F:
            self.agents[name] = agent_of(name, function, outside=outside(function), **options)
            return function

        return register

    def _retry_policy(
        self, name: str, retries: int | None, delays: Sequence[float] | None
    ) -> RetryPolicy | None:
        if retries is None and delays is None:
            return None
        values = {"retry.max_retries": self.settings.retry.max_retries if retries is None else retries}
        if delays is not None:
            values["retry.delays"] = list(delays)  # type: ignore[assignment]
        changed = override(self.settings, values, source=f"agent {name}")
        check(changed)
        return Limits.of(changed, self.owner).retry
