"""A store under test, words for the stages of its tasks, and a clock that the test moves."""

from __future__ import annotations

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw
import asyncpg

from endwell.model import commands as c
from endwell.model.card import record_id
from endwell.model.moments import SECOND
from endwell.model.task import ErrorInfo, Task
from endwell.policy.limits import Limits
from endwell.policy.retry import RetryPolicy
from endwell.runtime import Runtime
from endwell.store.contract import Ring, Store
from endwell.store.log import Problem, check_chain
from endwell.store.postgres.store import PostgresStore
from endwell.store.rows import Reply
from endwell.store.sqlite.store import SqliteStore
from endwell.store.working_set import replay
from tests.support.manual_clock import ManualClock

START_US = 1_700_000_000 * SECOND
LIMITS = Limits(retry=RetryPolicy())
BROKEN = ErrorInfo(code="exception", type="ValueError", message="it broke")
HOPELESS = ErrorInfo(code="bad_input", message="no such field", retryable=False)


class Database(ABC):
    """One database, on which any number of stores may be opened."""

    runtime: Runtime

    @abstractmethod
    def store(self, limits: Limits = LIMITS, ring: Ring | None = None) -> Store:
        """Another store on it, not yet open: to the database, another process."""

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """Let time pass for every store on it."""

    @abstractmethod
    async def sql(self, statement: str) -> list[Sequence[Any]]:
        """Go behind the door's back."""


class SqliteDatabase(Database):
    """A file; its stores take the time from one clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(START_US)
        self.runtime = Runtime.system(clock=self.clock)

    def store(self, limits: Limits = LIMITS, ring: Ring | None = None) -> SqliteStore:
        return SqliteStore(self.path, limits=limits, runtime=self.runtime, ring=ring)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def sql(self, statement: str) -> list[Sequence[Any]]:
        connection = apsw.Connection(str(self.path))
        connection.set_busy_timeout(5000)
        try:
            return list(connection.execute(statement).fetchall())
        finally:
            connection.close()


class PostgresDatabase(Database):
    """A database of a server; its stores see the server's clock, and what the test adds to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.runtime = Runtime.system()
        self._shift_us = 0

    def store(self, limits: Limits = LIMITS, ring: Ring | None = None) -> PostgresStore:
        return PostgresStore(
            self.url, limits=limits, runtime=self.runtime, ring=ring, shift=lambda: self._shift_us
        )

    def advance(self, seconds: float) -> None:
        self._shift_us += round(seconds * SECOND)

    async def sql(self, statement: str) -> list[Sequence[Any]]:
        connection = await asyncpg.connect(self.url)
        try:
            if ";" in statement:
                await connection.execute(statement)
                return []
            return list(await connection.fetch(statement))
        finally:
            await connection.close()


class World:
    """One open store and the words of the tests; further stores stand for other processes."""

    def __init__(self, database: Database, limits: Limits = LIMITS) -> None:
        self.database = database
        self.limits = limits
        self.bells: set[str] = set()
        self.store = database.store(limits, ring=self.bells.update)
        self._others: list[Store] = []

    async def open(self) -> None:
        await self.store.open()

    async def close(self) -> None:
        for store in (*self._others, self.store):
            await store.close()

    async def another_store(self) -> Store:
        other = self.database.store(self.limits)
        await other.open()
        self._others.append(other)
        return other

    def new_id(self) -> str:
        return self.database.runtime.ids.new()

    def advance(self, seconds: float) -> None:
        self.database.advance(seconds)

    def _basics(self) -> dict[str, Any]:
        return {"command_id": self.new_id(), "namespace": "default"}

    def submit(self, agent: str = "coder", payload: bytes = b"{}", **options: Any) -> c.Submit:
        digest = hashlib.sha256(payload).hexdigest()
        options = {"task_id": self.new_id(), **options}
        return c.Submit(**self._basics(), agent=agent, payload=payload, payload_hash=digest, **options)

    def to(self, kind: type[c.TaskCommand], task: Task, **options: Any) -> Any:
        """A command to a task; a fenced one comes from the attempt that the task was claimed with."""
        if issubclass(kind, c.AttemptCommand):
            options = {"attempt_id": task.attempt_id, **options}
        if kind is c.Reclaim:
            options = {"session_id": task.session_id, **options}
        return kind(**self._basics(), task_id=task.id, **options)

    def call(self, task: Task, name: str = "look", kind: str = "tool", **options: Any) -> c.Call:
        """One thing to wait for; its content is what a tool is asked or a person shown."""
        content = options.pop("content", b'{"arguments":null}' if kind in ("tool", "approval") else None)
        return c.Call(
            tool_call_id=record_id(task.id, f"1:(){name}#1"),
            kind=kind,  # type: ignore[arg-type]
            within=round(options.pop("within", 60) * SECOND),
            name=options.pop("asks", name),
            content=content,
            content_hash=hashlib.sha256(content or b"").hexdigest(),
            **options,
        )

    async def suspended_task(self, *names: str, **options: Any) -> Task:
        """A turn that waits for tools of these names."""
        task = await self.running_task(**options)
        calls = tuple(self.call(task, name) for name in names or ("look",))
        return await self.do(self.to(c.Suspend, task, calls=calls))

    def answer(self, task: Task, name: str = "look", content: bytes = b'"seen"', **options: Any) -> Any:
        """An answer from outside to a tool call."""
        call_id = record_id(task.id, f"1:(){name}#1")
        digest = hashlib.sha256(content).hexdigest()
        return self.to(c.Answer, task, tool_call_id=call_id, content=content, content_hash=digest, **options)

    def finish(self, task: Task, result: bytes = b'"done"') -> Any:
        return self.to(c.Finish, task, result=result, result_hash=hashlib.sha256(result).hexdigest())

    def fail(self, task: Task, error: ErrorInfo = BROKEN) -> Any:
        return self.to(c.FailTurn, task, error=error)

    def claim_next(
        self, session: str = "s1", limit: int = 1, agents: Sequence[str] = ("coder",)
    ) -> c.ClaimNext:
        return c.ClaimNext(**self._basics(), session_id=session, agents=tuple(agents), limit=limit, actor="w")

    def dispatch_next(self, limit: int = 1, agent: str = "coder") -> c.DispatchNext:
        return c.DispatchNext(**self._basics(), agent=agent, limit=limit)

    def heartbeat(self, *held: Task, session: str = "s1", lease: float = 30) -> c.Heartbeat:
        named = tuple((task.id, task.attempt_id or "") for task in held)
        return c.Heartbeat(**self._basics(), session_id=session, lease=round(lease * SECOND), attempts=named)

    def close_session(self, session: str, reason: str = "goodbye") -> c.CloseSession:
        return c.CloseSession(**self._basics(), session_id=session, reason=reason)

    async def register(self, *specs: c.AgentSpec) -> None:
        await self.store.commit_one(c.RegisterAgents(**self._basics(), agents=specs))

    async def open_session(
        self,
        session: str = "s1",
        lease: float = 30,
        concurrency: int = 100,
        *,
        namespace: str = "default",
        agents: tuple[str, ...] = ("coder",),
    ) -> str:
        await self.store.commit_one(
            c.OpenSession(
                **{**self._basics(), "namespace": namespace},
                session_id=session,
                kind="worker",
                name="w",
                host="h",
                pid=1,
                agents=agents,
                concurrency=concurrency,
                lease=round(lease * SECOND),
            )
        )
        return session

    async def queued_task(self, **options: Any) -> Task:
        return (await self.store.commit_one(self.submit(**options))).unwrap()

    async def claimed(
        self, session: str = "s1", limit: int = 1, store: Store | None = None, **options: Any
    ) -> list[Task]:
        """What a claim takes."""
        reply = await (store or self.store).commit_one(self.claim_next(session, limit, **options))
        return [offer.task for offer in reply.taken]

    async def running_task(self, session: str = "s1", **options: Any) -> Task:
        if await self.store.session("default", session) is None:
            await self.open_session(session)
        task = await self.queued_task(**options)
        return await self.claim(task, session)

    async def claim(self, task: Task, session: str = "s1") -> Task:
        claim = self.to(c.Claim, task, session_id=session, attempt_id=self.new_id())
        return (await self.store.commit_one(claim)).unwrap()

    async def reply(self, command: c.Command) -> Reply:
        (reply,) = await self.store.commit((command,))
        return reply

    async def do(self, command: c.TaskCommand) -> Task:
        return (await self.store.commit_one(command)).unwrap()

    async def task(self, task: Task) -> Task:
        return await self.store.task("default", task.id)

    async def history(self, task: Task) -> list[str]:
        return [event.type for event in await self.store.events_of_task("default", task.id)]

    async def problems(self) -> list[Problem]:
        """What is wrong with any task's log, and with any row that is not the fold of it."""
        found: list[Problem] = []
        for task_id in {*await self.store.event_tasks("default", "", 100_000), *await self._ids()}:
            events = await self.store.events_of_task("default", task_id)
            row = await self.store.find_task("default", task_id)
            found += check_chain(task_id, events, (row.version, row.head_hash) if row else None)
            if row is not None and replay(events) != row:
                found.append(Problem(task_id, row.version, "row_is_not_the_fold"))
        return found

    async def _ids(self) -> list[str]:
        return [task_id for task_id, _, _ in await self.store.heads_of_tasks("default", "", 100_000)]


T = TypeVar("T")


def flat(lists: Iterable[list[T]]) -> list[T]:
    return list(itertools.chain.from_iterable(lists))
