"""Asking for work and waiting for it: the async client, and a synchronous front for scripts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, TypeVarTuple

from endwell.doorbell.contract import Doorbell, is_rung
from endwell.errors import (
    BadInput,
    IdempotencyConflict,
    StoreError,
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
from endwell.operate.actions import Actions
from endwell.operate.approvals import Approvals
from endwell.operate.effects import Effects
from endwell.operate.tool_calls import Answers
from endwell.operate.why import WhyPace, why
from endwell.policy.submitting import Cause, Request, Seconds, filled, order_for, unknown_agent
from endwell.runtime.base import Runtime
from endwell.runtime.current import CURRENT_TURN
from endwell.settings import ApprovalSettings as ApprovalSettings
from endwell.store.contract import Store
from endwell.store.deliverables import delivered
from endwell.turn.agents import Agent

SPEC_SECONDS = 1.0
"""How long an agent that others serve is taken to be as it was last registered."""

Ended = tuple[Task, bytes | None]
"""A task that has ended, and its deliverable as it is stored, if that was read with it."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_NOT_SUCCEEDED: dict[str, type[TaskNotSucceeded]] = {
    "failed": TaskFailed,
    "timeout": TaskTimedOut,
    "cancelled": TaskCancelled,
}


class Client:
    """Everything that can be asked of a running or sleeping installation. Close nothing: its owner does."""

    def __init__(
        self,
        store: Store,
        bell: Doorbell,
        runtime: Runtime,
        *,
        namespace: str,
        agents: Mapping[str, Agent],
        owner: str,
        poll_seconds: float,
        approval: ApprovalSettings,
        pace: WhyPace,
    ) -> None:
        self.store = store
        self._pace = pace
        self.namespace = namespace
        self._runtime = runtime
        self._agents = agents
        self._owner = owner
        self._approval = approval
        self._specs: dict[str, tuple[AgentSpec, float]] = {}
        self.actions = Actions(store, runtime, namespace=namespace, actor=owner)
        self._waiters = _Waiters(store, bell, runtime, namespace, poll_seconds)

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
        """Ask for work. The same key with the same agent and payload is the same task.

        What an agent submits is caused by its task, and so is what names one with `caused_by`: the runaway
        guard counts along that chain. `detached=True` begins a chain of its own.
        """
        request = Request(
            agent=agent,
            priority=priority,
            delay=delay,
            deadline=deadline,
            channel=channel,
            cause=None if detached else await self._cause(caused_by),
        )
        spec = await self.spec(agent)
        command = filled(self._order(request, spec), spec, payload, key, self._runtime.ids.new())
        heard = self._waiters.ends_heard
        reply = await self.store.one(command)
        return AsyncHandle(self, reply.unwrap(), deduplicated=not reply.is_new, heard=heard)

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
        """Ask for much work at once. Everything is checked first; if one is bad, none is stored.

        Only whether an earlier task has a key shows at the door: such a one is refused, the others stand.
        """
        spec = await self.spec(agent)
        request = Request(
            agent=agent,
            priority=priority,
            delay=delay,
            deadline=deadline,
            channel=channel,
            cause=None if detached else await self._cause(caused_by),
        )
        order = self._order(request, spec)
        commands = [
            self._numbered(number, order, spec, payload, key)
            for number, (payload, key) in enumerate(_with_keys(payloads, keys))
        ]
        _refuse_conflicts(commands)
        replies = await self.store.commit(commands)
        return [AsyncHandle(self, reply.unwrap(), deduplicated=not reply.is_new) for reply in replies]

    def _numbered(self, number: int, order: Submit, spec: AgentSpec, payload: Any, key: str | None) -> Submit:
        try:
            return filled(order, spec, payload, key, self._runtime.ids.new())
        except BadInput as refusal:
            raise BadInput(
                f"number {number}: {refusal.message}",
                code=refusal.code,
                hint=refusal.hint,
                field=f"[{number}].{refusal.field}" if refusal.field else f"[{number}]",
            ) from refusal

    async def _cause(self, caused_by: str | None) -> Cause | None:
        """The task on whose account something is asked for: the one named, else that of the running turn."""
        if caused_by is not None:
            return Cause.of(await self.store.task(self.namespace, caused_by))
        turn = CURRENT_TURN.get()
        if turn is None or turn.namespace != self.namespace:
            return None
        return Cause(turn.task_id, turn.deliveries, turn.origin_at)

    def _order(self, request: Request, spec: AgentSpec) -> Submit:
        return order_for(request, spec, namespace=self.namespace, owner=self._owner, approval=self._approval)

    async def spec(self, reference: str) -> AgentSpec:
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
        """A handle on a task that is already there."""
        return AsyncHandle(self, await self.store.task(self.namespace, task_id))

    async def answer(self, call_id: str, value: Any = None) -> dict[str, Any]:
        """Give a tool call its result; the first answer counts."""
        return await self._answers().answer(call_id, value)

    async def fail_call(self, call_id: str, error: Any) -> dict[str, Any]:
        """Tell a tool call that it failed."""
        return await self._answers().fail(call_id, error)

    async def signal(self, task_id: str, name: str, value: Any = None) -> dict[str, Any]:
        """Tell a task something by name; kept until it waits for it."""
        return await self._answers().signal(task_id, name, value)

    async def approve(
        self, approval_id: str, *, by: str | None = None, shown_hash: str | None = None
    ) -> dict[str, Any]:
        """Agree, as a person of that name."""
        return await self._approvals(by).approve(approval_id, shown_hash=shown_hash)

    async def reject(self, approval_id: str, *, by: str | None = None) -> dict[str, Any]:
        """Decline, as a person of that name."""
        return await self._approvals(by).reject(approval_id)

    async def settle_effect(
        self, key: str, verdict: Verdict, result: Any = None, *, by: str | None = None, force: bool = False
    ) -> dict[str, Any]:
        """Say what became of an unknown effect: `done`, `not_done` or `abandon`.

        `not_done` while a call of it may be in progress is refused; `force` says it nevertheless.
        """
        about = {"namespace": self.namespace, "actor": self._person(by)}
        return await Effects(self.store, self._runtime, **about).settle(key, verdict, result, force=force)

    async def why(self, task_id: str) -> dict[str, Any]:
        """Where a task is, what moves it next, when it ends at the latest."""
        return await why(self.store, self.namespace, task_id, pace=self._pace)

    async def unblock(self, task_id: str) -> Task:
        """Let a blocked task go on."""
        return await self.actions.unblock(task_id)

    async def assign(self, task_id: str, owner: str) -> Task:
        """Name another person who answers for the task."""
        return await self.actions.assign(task_id, owner)

    def _answers(self) -> Answers:
        return Answers(self.store, self._runtime, namespace=self.namespace, actor=self._owner)

    def _person(self, by: str | None) -> str:
        return self._owner if by is None else by

    def _approvals(self, by: str | None) -> Approvals:
        return Approvals(self.store, self._runtime, namespace=self.namespace, actor=self._person(by))

    async def wait_ended(self, task_id: str, timeout: float | None = None) -> Task:
        """The task once it has ended."""
        return (await self.wait_result(task_id, timeout))[0]

    async def wait_result(
        self, task_id: str, timeout: float | None = None, *, heard: int | None = None
    ) -> Ended:
        """The task once it has ended; with what it delivered, if that was read with it.

        `heard`: how many ends were heard of when it was not there yet. If it is none more, it has not ended.
        """
        with self._waiters.listening(task_id) as ended:
            self._runtime.give_way()
            if not self._waiters.has_heard_all_since(heard):
                task = await self.store.task(self.namespace, task_id)
                if task.is_ended:
                    return task, None
            try:
                async with self._runtime.timeout(timeout):
                    return await ended
            except TimeoutError:
                raise WaitTimedOut(
                    f"task {task_id} has not ended after {timeout} s", hint="it goes on", task_id=task_id
                ) from None

    def typed(self, agent: str, value: Any) -> Any:
        """The result as the agent's declared type, where this process knows the agent."""
        known = self._agents.get(agent)
        return known.result.check(value, "result") if known else value


class AsyncHandle:
    """One task. `deduplicated` says that the submission found it already there."""

    def __init__(
        self, client: Client, task: Task, *, deduplicated: bool = False, heard: int | None = None
    ) -> None:
        self.id = task.id
        self.deduplicated = deduplicated
        self._client = client
        self._heard = None if deduplicated else heard

    async def result(self, timeout: float | None = None) -> Any:
        """Wait for the end: the value, or TaskFailed, TaskTimedOut, TaskCancelled."""
        task, content = await self._client.wait_result(self.id, timeout, heard=self._heard)
        deliverable = await delivered(self._client.store, task, content)
        if task.status == "succeeded":
            return self._client.typed(task.agent, deliverable)
        message = (deliverable.get("error") or {}).get("message") or ""
        detail = f": {message}" if message else ""
        raise _NOT_SUCCEEDED[task.status](
            f"task {task.id} ended as {task.status} ({task.reason}){detail}",
            task=task,
            deliverable=deliverable,
        )

    async def task(self) -> Task:
        """The task as it stands."""
        return await self._client.store.task(self._client.namespace, self.id)

    async def status(self) -> str:
        """Its status."""
        return (await self.task()).status

    async def why(self) -> dict[str, Any]:
        """Where it is, what moves it next, when it ends at the latest."""
        return await self._client.why(self.id)

    async def cancel(self, reason: str = "cancelled") -> Task:
        """End it now."""
        return await self._client.actions.cancel(self.id, reason)

    async def unblock(self) -> Task:
        """Let it go on, if it is blocked."""
        return await self._client.unblock(self.id)

    async def assign(self, owner: str) -> Task:
        """Name another person who answers for it."""
        return await self._client.assign(self.id, owner)


class Front(Protocol):
    """How blocking callers reach the asynchronous client."""

    def call(self, fn: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts) -> T:
        """Run a coroutine function on the client's event loop; return its result."""


class Handle:
    """The same without await, for scripts and notebooks."""

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
        """The task as it stands."""
        return self._front.call(self._handle.task)

    def status(self) -> str:
        """Its status."""
        return self._front.call(self._handle.status)

    def why(self) -> dict[str, Any]:
        """Where it is, what moves it next, when it ends at the latest."""
        return self._front.call(self._handle.why)

    def cancel(self, reason: str = "cancelled") -> Task:
        """End it now."""
        return self._front.call(self._handle.cancel, reason)

    def unblock(self) -> Task:
        """Let it go on, if it is blocked."""
        return self._front.call(self._handle.unblock)

    def assign(self, owner: str) -> Task:
        """Name another person who answers for it."""
        return self._front.call(self._handle.assign, owner)


class _Waiters:
    """Everybody in this process who waits for a task's end: one question for all of them, at each ring."""

    def __init__(
        self, store: Store, bell: Doorbell, runtime: Runtime, namespace: str, poll_seconds: float
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._namespace = namespace
        self._poll_seconds = poll_seconds
        self._waiting: dict[str, list[asyncio.Future[Ended]]] = {}
        self._rung = asyncio.Event()
        self._looker: asyncio.Task[None] | None = None
        self._bell = bell
        self.ends_heard: int | None = None
        """How often an end was rung; not counted before somebody has waited for one."""

    def has_heard_all_since(self, count: int | None) -> bool:
        """Whether nothing was heard to end since that count; a lost ring is made up for by polling."""
        return count is not None and count == self.ends_heard and self._bell.health().connected

    def _heard(self, topics: frozenset[str]) -> None:
        if is_rung(f"ended:{self._namespace}", topics):
            self.ends_heard = (self.ends_heard or 0) + 1
            self._rung.set()

    @contextmanager
    def listening(self, task_id: str) -> Iterator[asyncio.Future[Ended]]:
        """The task once it has ended. Rings are heard from now on: whoever looks afterwards misses none."""
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(task_id, []).append(future)
        if self.ends_heard is None:
            self.ends_heard = 0
            self._bell.subscribe(self._heard)  # for as long as the bell is there
        if self._looker is None or self._looker.done():
            self._rung.clear()
            self._looker = self._runtime.spawn(self._look(), "endwell-waiters")
        try:
            yield future
        finally:
            self._leave(task_id, future)

    def _leave(self, task_id: str, future: asyncio.Future[Ended]) -> None:
        """Whoever lost patience is not looked for any more."""
        waiting = self._waiting.get(task_id, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self._waiting.pop(task_id, None)
            self._rung.set()  # nobody may be left to look for

    async def _look(self) -> None:
        try:
            while self._waiting:
                await self._runtime.wait(self._rung, self._poll_seconds)
                self._rung.clear()
                if self._waiting:
                    await self._look_once()
        except Exception as error:  # the store was closed under us: nobody is to wait for ever
            for future in [future for waiting in self._waiting.values() for future in waiting]:
                _settle(future, error)

    async def _look_once(self) -> None:
        try:
            found = await self._store.results_by_ids(self._namespace, list(self._waiting))
        except StoreError:
            await self._runtime.sleep(self._poll_seconds)
            return
        for task, content in found:
            for future in self._waiting.get(task.id, ()) if task.is_ended else ():
                _settle(future, (task, content))


def _settle(future: asyncio.Future[Ended], answer: Ended | Exception) -> None:
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _with_keys(payloads: Iterable[Any], keys: Sequence[str] | None) -> Iterable[tuple[Any, str | None]]:
    if keys is None:
        return ((payload, None) for payload in payloads)
    try:
        return list(zip(payloads, keys, strict=True))
    except ValueError:
        raise BadInput("there must be as many keys as payloads", code="bad_keys", field="keys") from None


def _refuse_conflicts(commands: Sequence[Submit]) -> None:
    """One key for two different payloads of the same call."""
    seen: dict[str, str] = {}
    for number, command in enumerate(commands):
        if (
            command.key is not None
            and seen.setdefault(command.key, command.payload_hash) != command.payload_hash
        ):
            raise IdempotencyConflict(
                f"number {number}: key {command.key!r} is already used for another payload of this call",
                hint="use another key, or the same payload",
                field=f"[{number}].key",
            )
