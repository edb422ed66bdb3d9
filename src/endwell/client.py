"""The client: submit tasks, wait for their results, decide; async, and blocking for scripts."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, TypeVarTuple

from endwell.doorbell.contract import Doorbell
from endwell.errors import (
    BadInput,
    IdempotencyConflict,
    TaskCancelled,
    TaskFailed,
    TaskNotSucceeded,
    TaskTimedOut,
    WaitTimedOut,
)
from endwell.model import names
from endwell.model.commands import AgentSpec, Submit
from endwell.model.effect import Verdict
from endwell.model.task import Task
from endwell.operate import approvals, effects, tool_calls
from endwell.operate.actions import Actions
from endwell.operate.end_waiters import EndedTask, EndWaiters
from endwell.operate.why import WhyPace, why
from endwell.policy.submitting import Cause, Request, Seconds, fill_order, order_for, unknown_agent
from endwell.runtime.base import Runtime
from endwell.runtime.current import CURRENT_TURN
from endwell.settings import Settings
from endwell.store.actor import Actor
from endwell.turn.agents import Agent

SPEC_SECONDS = 1.0
"""How long the options of an agent that other processes serve are cached."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_NOT_SUCCEEDED: dict[str, type[TaskNotSucceeded]] = {
    "failed": TaskFailed,
    "timeout": TaskTimedOut,
    "cancelled": TaskCancelled,
}


class Client:
    """Everything a program can ask of an installation. Its node opens and closes it."""

    def __init__(
        self,
        actor: Actor,
        bell: Doorbell,
        runtime: Runtime,
        settings: Settings,
        *,
        agents: Mapping[str, Agent],
    ) -> None:
        self.store = actor.store
        self.namespace = actor.namespace
        self.actions = Actions(actor)
        self._actor = actor
        self._runtime = runtime
        self._agents = agents
        self._approval = settings.approval
        self._pace = WhyPace.from_settings(settings)
        self._specs: dict[str, tuple[AgentSpec, float]] = {}
        self._waiters = EndWaiters(
            actor.store,
            bell,
            runtime,
            namespace=actor.namespace,
            poll_seconds=settings.worker.poll_seconds,
        )

    async def submit(
        self,
        agent: str,
        payload: Any = None,
        *,
        key: str | None = None,
        priority: int = 0,
        delay: Seconds | None = None,
        deadline: Seconds | None = None,
        channel: str = "main",
        caused_by: str | None = None,
        detached: bool = False,
    ) -> AsyncHandle:
        """Submit a task. The same key with the same agent and payload is the same task.

        A task that an agent submits is caused by the agent's own task; elsewhere, name its cause with
        `caused_by`. The runaway guard counts along that chain; `detached=True` begins a new one.
        """
        spec = await self.find_spec(agent)
        request = Request(
            agent=agent,
            priority=priority,
            delay=delay,
            deadline=deadline,
            channel=channel,
            cause=None if detached else await self._find_cause(caused_by),
        )
        command = fill_order(self._order(request, spec), spec, payload, key, self._actor.new_id())
        ends_rung = self._waiters.ends_rung
        reply = await self.store.commit_one(command)
        return AsyncHandle(self, reply.unwrap(), deduplicated=not reply.is_new, ends_rung=ends_rung)

    async def submit_many(
        self,
        agent: str,
        payloads: Iterable[Any],
        *,
        keys: Sequence[str] | None = None,
        priority: int = 0,
        delay: Seconds | None = None,
        deadline: Seconds | None = None,
        channel: str = "main",
        caused_by: str | None = None,
        detached: bool = False,
    ) -> list[AsyncHandle]:
        """Submit many tasks. All are checked first; if one is bad, none is stored.

        Whether an earlier task has a key shows only in the commit: that one is refused, the others stand.
        """
        spec = await self.find_spec(agent)
        request = Request(
            agent=agent,
            priority=priority,
            delay=delay,
            deadline=deadline,
            channel=channel,
            cause=None if detached else await self._find_cause(caused_by),
        )
        order = self._order(request, spec)
        commands = [
            self._make_numbered(number, order, spec, payload, key)
            for number, (payload, key) in enumerate(_with_keys(payloads, keys))
        ]
        _refuse_conflicts(commands)
        replies = await self.store.commit(commands)
        return [AsyncHandle(self, reply.unwrap(), deduplicated=not reply.is_new) for reply in replies]

    def _make_numbered(
        self, number: int, order: Submit, spec: AgentSpec, payload: Any, key: str | None
    ) -> Submit:
        try:
            return fill_order(order, spec, payload, key, self._actor.new_id())
        except BadInput as refusal:
            raise BadInput(
                f"number {number}: {refusal.message}",
                code=refusal.code,
                hint=refusal.hint,
                field=f"[{number}].{refusal.field}" if refusal.field else f"[{number}]",
            ) from refusal

    async def _find_cause(self, caused_by: str | None) -> Cause | None:
        """The task that caused a submission: the named one, else that of the running turn."""
        if caused_by is not None:
            return Cause.of(await self.store.task(self.namespace, caused_by))
        turn = CURRENT_TURN.get()
        if turn is None or turn.namespace != self.namespace:
            return None
        return Cause(turn.task_id, turn.deliveries, turn.origin_at)

    def _order(self, request: Request, spec: AgentSpec) -> Submit:
        owner = self._actor.name
        return order_for(request, spec, namespace=self.namespace, owner=owner, approval=self._approval)

    async def find_spec(self, reference: str) -> AgentSpec:
        """The agent as this process knows it, or as a worker has registered it in the store."""
        name, _ = names.agent_reference(reference)
        known, good_until = self._specs.get(name, (None, 0.0))
        now = self._runtime.clock.monotonic()
        if known is not None and now < good_until:
            return known
        local = self._agents.get(name)
        found = local.spec() if local else await self.store.agent(self.namespace, name)
        if found is None:
            raise unknown_agent(name, [spec.name for spec in await self.store.agents(self.namespace)])
        self._specs[name] = (found, math.inf if local else now + SPEC_SECONDS)
        return found

    async def task(self, task_id: str) -> AsyncHandle:
        """A handle on an existing task."""
        return AsyncHandle(self, await self.store.task(self.namespace, task_id))

    async def answer(self, call_id: str, value: Any = None) -> dict[str, Any]:
        """Give a tool call its result; the first answer counts."""
        return await tool_calls.answer(self._actor, call_id, value)

    async def fail_call(self, call_id: str, error: Any) -> dict[str, Any]:
        """Report that a tool call failed."""
        return await tool_calls.fail(self._actor, call_id, error)

    async def signal(self, task_id: str, name: str, value: Any = None) -> dict[str, Any]:
        """Send a task a signal; it is kept until the task waits for it."""
        return await tool_calls.signal(self._actor, task_id, name, value)

    async def approve(
        self, approval_id: str, *, by: str | None = None, shown_hash: str | None = None
    ) -> dict[str, Any]:
        """Agree, in this person's name."""
        return await approvals.approve(self._actor_of(by), approval_id, shown_hash=shown_hash)

    async def reject(self, approval_id: str, *, by: str | None = None) -> dict[str, Any]:
        """Decline, in this person's name."""
        return await approvals.reject(self._actor_of(by), approval_id)

    async def settle_effect(
        self, key: str, verdict: Verdict, result: Any = None, *, by: str | None = None, force: bool = False
    ) -> dict[str, Any]:
        """Record the outcome of an unknown effect: `done`, `not_done` or `abandon`.

        `not_done` is refused while a call of the effect may be in progress, unless with `force`.
        """
        return await effects.settle(self._actor_of(by), self._runtime, key, verdict, result, force=force)

    def _actor_of(self, by: str | None) -> Actor:
        """Acts in a person's name: the owner's unless another is given."""
        return self._actor.with_name(names.person_name(self._actor.name if by is None else by))

    async def why(self, task_id: str) -> dict[str, Any]:
        """Where a task is, what moves it next, when it ends at the latest."""
        return await why(self.store, self.namespace, task_id, pace=self._pace)

    async def unblock(self, task_id: str) -> Task:
        """Continue a blocked task."""
        return await self.actions.unblock(task_id)

    async def assign(self, task_id: str, owner: str) -> Task:
        """Make another person responsible for the task."""
        return await self.actions.assign(task_id, owner)

    async def wait_ended(self, task_id: str, timeout: float | None = None) -> Task:
        """Wait until the task has ended."""
        return (await self.wait_result(task_id, timeout))[0]

    async def wait_result(
        self, task_id: str, timeout: float | None = None, *, ends_rung: int | None = None
    ) -> EndedTask:
        """Wait until the task has ended; the deliverable comes with it if it was read with it.

        `ends_rung`: the count of rung ends before the task existed. While it stands, the task has not ended.
        """
        with self._waiters.listen_for_end(task_id) as ended:
            self._runtime.give_way()
            if not self._waiters.has_no_end_since(ends_rung):
                task = await self.store.task(self.namespace, task_id)
                if task.is_ended:
                    return task, None
            try:
                async with self._runtime.timeout(timeout):
                    return await ended
            except TimeoutError:
                raise WaitTimedOut(
                    f"task {task_id} has not ended after {timeout} s",
                    hint=f"the task continues; `endwell why {task_id}` shows what it waits for",
                    task_id=task_id,
                ) from None

    def check_result(self, agent: str, value: Any) -> Any:
        """The result as the agent's declared type, where this process knows the agent."""
        known = self._agents.get(agent)
        return known.result.check(value, "result") if known else value


class AsyncHandle:
    """One task. `deduplicated`: the submission found it already there."""

    def __init__(
        self, client: Client, task: Task, *, deduplicated: bool = False, ends_rung: int | None = None
    ) -> None:
        self.id = task.id
        self.deduplicated = deduplicated
        self._client = client
        self._ends_rung = None if deduplicated else ends_rung

    async def result(self, timeout: float | None = None) -> Any:
        """Wait for the end: the value, or TaskFailed, TaskTimedOut, TaskCancelled."""
        task, content = await self._client.wait_result(self.id, timeout, ends_rung=self._ends_rung)
        deliverable = await self._client.store.deliverable_of(task, content)
        if task.status == "succeeded":
            return self._client.check_result(task.agent, deliverable)
        message = (deliverable.get("error") or {}).get("message") or ""
        detail = f": {message}" if message else ""
        raise _NOT_SUCCEEDED[task.status](
            f"task {task.id} ended as {task.status} ({task.reason}){detail}",
            task=task,
            deliverable=deliverable,
        )

    async def task(self) -> Task:
        """The task as it is stored now."""
        return await self._client.store.task(self._client.namespace, self.id)

    async def status(self) -> str:
        """The task's status."""
        return (await self.task()).status

    async def why(self) -> dict[str, Any]:
        """Where it is, what moves it next, when it ends at the latest."""
        return await self._client.why(self.id)

    async def cancel(self, reason: str = "cancelled") -> Task:
        """End it now."""
        return await self._client.actions.cancel(self.id, reason)

    async def unblock(self) -> Task:
        """Continue it, if it is blocked."""
        return await self._client.unblock(self.id)

    async def assign(self, owner: str) -> Task:
        """Make another person responsible for it."""
        return await self._client.assign(self.id, owner)


class Front(Protocol):
    """How blocking callers reach the asynchronous client."""

    def call(self, fn: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts) -> T:
        """Run a coroutine function on the client's event loop; return its result."""


class Handle:
    """An AsyncHandle without await, for scripts and notebooks."""

    def __init__(self, front: Front, handle: AsyncHandle) -> None:
        self.id = handle.id
        self.deduplicated = handle.deduplicated
        self._front = front
        self._handle = handle

    def __repr__(self) -> str:
        return f"<Handle {self.id}>"

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end: the value, or TaskFailed, TaskTimedOut, TaskCancelled."""
        return self._front.call(self._handle.result, timeout)

    def task(self) -> Task:
        """The task as it is stored now."""
        return self._front.call(self._handle.task)

    def status(self) -> str:
        """The task's status."""
        return self._front.call(self._handle.status)

    def why(self) -> dict[str, Any]:
        """Where it is, what moves it next, when it ends at the latest."""
        return self._front.call(self._handle.why)

    def cancel(self, reason: str = "cancelled") -> Task:
        """End it now."""
        return self._front.call(self._handle.cancel, reason)

    def unblock(self) -> Task:
        """Continue it, if it is blocked."""
        return self._front.call(self._handle.unblock)

    def assign(self, owner: str) -> Task:
        """Make another person responsible for it."""
        return self._front.call(self._handle.assign, owner)


def _with_keys(payloads: Iterable[Any], keys: Sequence[str] | None) -> Iterable[tuple[Any, str | None]]:
    if keys is None:
        return ((payload, None) for payload in payloads)
    try:
        return list(zip(payloads, keys, strict=True))
    except ValueError:
        raise BadInput(
            "keys and payloads differ in number",
            code="bad_keys",
            hint="give one key for each payload",
            field="keys",
        ) from None


def _refuse_conflicts(commands: Sequence[Submit]) -> None:
    """Refuse one key for two different payloads of the same call."""
    seen: dict[str, str] = {}
    for number, command in enumerate(commands):
        if command.key is None:
            continue
        if seen.setdefault(command.key, command.payload_hash) != command.payload_hash:
            raise IdempotencyConflict(
                f"number {number}: key {command.key!r} is already used for another payload of this call",
                hint="use another key, or the same payload",
                field=f"[{number}].key",
            )
