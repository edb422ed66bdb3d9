"""Register agents, tools and programs that the workers of an installation execute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
    """`agents` holds agents, tools and programs by name."""

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

        `retries` and `delays` (seconds before each retry) override the settings; `concurrency` limits its
        tasks at once in the whole installation; `step_timeout` is the default for its steps. With
        `approval`, or a `risk` that the settings name, a person must agree before a task starts. With
        `isolation="process"` each turn runs in its own process, which is killed if it takes longer than
        `timeout` seconds or more than `memory_mb` of memory.
        """
        names.agent_name(name)
        limits = checked_isolation(name, isolation, timeout, memory_mb)
        return self._make_registration(
            name,
            partial(self._isolated_runner, name, limits),
            give_up_on=checked_exceptions(name, give_up_on),
            deadline=microseconds(deadline, "deadline", least=SHORTEST_DEADLINE_SECONDS),
            step_timeout=None if step_timeout is None else seconds_of(step_timeout, 0, "step_timeout"),
            on_version_change=checked_version_change(name, on_version_change),
            options=AgentOptions(risk=checked_risk(risk), approval=checked_guard(approval)),
            **self._common_options(name, retries, delays, concurrency, version),
        )

    def _isolated_runner(
        self, name: str, limits: dict[str, Any] | None, function: Callable[..., Any]
    ) -> OutsideRunner | None:
        if limits is None:
            return None
        return Isolated(app=self, agent=name, function=function, runtime=self.runtime, **limits)

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
        """Register a function as a tool: agents call it with `ctx.tool(name, arguments)`.

        The caller waits for the longest of `worker.suspend_timeout_seconds` and these timeouts.
        """
        names.tool_name(name)
        return self._make_registration(
            name,
            kind="tool",
            give_up_on=checked_exceptions(name, give_up_on),
            options=AgentOptions(
                timeout_seconds=checked_timeout(timeout, "timeout"),
                suspend_timeout_seconds=checked_timeout(suspend_timeout, "suspend_timeout"),
                risk=checked_risk(risk),
                approval=checked_guard(approval),
            ),
            **self._common_options(name, retries, delays, concurrency, version),
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

        It is killed, with its own children, after `timeout` seconds, when its attempt ends, and when the
        worker dies. `env` is added to the worker's environment.
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
        register = self._make_registration(
            name,
            lambda function: program,
            deadline=microseconds(deadline, "deadline", least=SHORTEST_DEADLINE_SECONDS),
            **self._common_options(name, retries, delays, concurrency, version),
        )
        register(any_program)

    def _common_options(
        self,
        name: str,
        retries: int | None,
        delays: Sequence[float] | None,
        concurrency: int | None,
        version: str | None,
    ) -> dict[str, Any]:
        """The options of agents, tools and programs alike."""
        return {
            "retry": self._retry_policy(name, retries, delays),
            "concurrency": checked_concurrency(name, concurrency),
            "version": version,
        }

    def _make_registration(
        self,
        name: str,
        make_runner: Callable[[Callable[..., Any]], OutsideRunner | None] = lambda function: None,
        **options: Any,
    ) -> Callable[[F], F]:
        if name in self.agents:
            raise UsageError(f"{self.agents[name].kind} {name!r} is already registered")

        def register(function: F) -> F:
            self.agents[name] = agent_of(name, function, outside=make_runner(function), **options)
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
