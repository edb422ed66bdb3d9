"""Foreign workers: programs that know only Redis and docs/protocol.md, held to the same rules as our own.

Each has a session in the store. Its lease is renewed from what the server says of its entries: a worker that
claims its entry to itself is alive. It asks with `claimed`, begins when the grant names the attempt of its
asking, and what it says afterwards counts only while that attempt holds the turn.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from endwell.errors import BadInput, EndwellError
from endwell.model import commands as c
from endwell.model import content, names
from endwell.model.session import Session
from endwell.model.task import ErrorInfo, Task
from endwell.pmo.stream_reclaim import FOREIGN
from endwell.policy.limits import SECOND
from endwell.queue.redis_streams.entries import Result
from endwell.queue.redis_streams.orchestrator import ForeignWorker, StreamOrchestrator
from endwell.runtime.base import Runtime
from endwell.store.contract import Store

log = logging.getLogger(__name__)

MESSAGE_LIMIT = 4000


class Foreign:
    """`hear(results)` sees to what they say; `renew()` keeps the leases of those that are alive."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        stream: StreamOrchestrator,
        *,
        namespace: str,
        actor: str,
        visibility_seconds: float,
        progress_seconds: float,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._stream = stream
        self._namespace = namespace
        self._actor = actor
        self._lease = int(visibility_seconds * SECOND)
        self._progress_seconds = progress_seconds
        self._progressed: dict[str, float] = {}
        self._registered: set[str] = set()
        self._knows_none = False

    async def hear(self, results: Sequence[Result]) -> None:
        """Each is seen to for itself; the store is asked before anybody is answered."""
        for result in results:
            match result.status:
                case "claimed":
                    await self._claimed(result)
                case "succeeded" | "failed":
                    await self._ended(result)

    async def _claimed(self, result: Result) -> None:
        attempt = attempt_of(result)
        task = await self._store.find_task(self._namespace, result.task_id)
        if task is None or not await self._is_granted(task, result, attempt):
            await self._stream.deny(result.turn_id, result.epoch)
            return
        await self._stream.grant(result.turn_id, result.epoch, attempt)

    async def _is_granted(self, task: Task, result: Result, attempt: str) -> bool:
        """Asked again after a crash, the store's first answer still stands."""
        if task.attempt_id == attempt:
            return True
        session = await self._session(ForeignWorker(name=result.worker_id, tools=(task.agent,)))
        claim = c.Claim(
            **self._about(),
            task_id=task.id,
            attempt_id=attempt,
            session_id=session.id,
            turn_id=result.turn_id,
            epoch=result.epoch,
        )
        (reply,) = await self._store.commit((claim,))
        return reply.refusal is None

    async def _ended(self, result: Result) -> None:
        command = self._ending(result)
        (reply,) = await self._store.commit((command,))
        if reply.refusal is not None:
            log.warning("%s of %s: %s", result.status, result.worker_id, reply.refusal.message)
            if reply.refusal.code != "stale_attempt":
                return
        else:
            await self._stream.revoke(result.turn_id, result.epoch)
        # An acknowledgement of its own, should the worker's get lost; a new offer has another entry.
        await self._stream.clear((result.message_id,))

    def _ending(self, result: Result) -> c.Finish | c.FailTurn:
        about = {**self._about(), "task_id": result.task_id, "attempt_id": result.attempt}
        if result.status == "failed":
            return self._failed(about, _error(result.error))
        try:
            output = content.encode(content.decode(result.output or "null", what="output"), what="output")
        except BadInput as refusal:
            return self._failed(about, ErrorInfo(code="bad_result", type="output", message=refusal.message))
        return c.Finish(**about, result=output, result_hash=content.fingerprint(output))

    def _failed(self, about: dict[str, Any], error: ErrorInfo) -> c.FailTurn:
        return c.FailTurn(**about, error=error, fraction=self._runtime.ids.fraction())

    async def renew(self) -> None:
        """Those that say what they serve, and those whose entries are fresh."""
        workers = {worker.name: worker for worker in await self._stream.foreign_workers()}
        if not workers and self._knows_none:
            return
        for worker in workers.values():
            await self._session(worker)
        sessions = await self._sessions()
        self._knows_none = not sessions
        for session in sessions:
            await self._renewed(session, is_here=session.name in workers)

    async def _renewed(self, session: Session, *, is_here: bool) -> None:
        idle = await self._held(session)
        fresh = {task.id: task for task, idle_us in idle if idle_us < self._lease}
        if not fresh and not is_here:
            return
        least = 0 if is_here else min(idle_us for _, idle_us in idle)
        beat = c.Heartbeat(
            **self._about(),
            session_id=session.id,
            lease=self._lease - least,
            attempts=tuple((task.id, task.attempt_id or "") for task in fresh.values()),
        )
        await self._store.commit((beat,))
        for task in fresh.values():  # a grant lapses, and a worker without one stops
            await self._stream.grant(task.turn_id or "", task.epoch, task.attempt_id or "")
        await self._progress(list(fresh.values()))

    async def _held(self, session: Session) -> list[tuple[Task, int]]:
        """Which of its pending entries are turns that it holds, and for how long it has not touched each."""
        pending = {each.message_id: each.idle_ms for each in await self._stream.tasks.of(session.name, 1000)}
        entries = await self._stream.deliveries(list(pending))
        ids = [entry.task_id for entry in entries.values()]
        tasks = (
            {task.id: task for task in await self._store.tasks_by_ids(self._namespace, ids)} if ids else {}
        )
        return [
            (task, pending[message_id] * 1000)
            for message_id, entry in entries.items()
            if (task := tasks.get(entry.task_id)) is not None
            and task.session_id == session.id
            and (task.turn_id, task.epoch) == (entry.turn_id, entry.epoch)
        ]

    async def _progress(self, tasks: Sequence[Task]) -> None:
        """A foreign worker has no other way to show progress than to touch its entry; told now and then."""
        now = self._runtime.clock.monotonic()
        last = self._progressed
        due = [t for t in tasks if now - last.setdefault(t.attempt_id or "", now) >= self._progress_seconds]
        held = {task.attempt_id for task in tasks}
        self._progressed = {each: at for each, at in last.items() if each in held or now - at < 3600}
        for task in due:
            self._progressed[task.attempt_id or ""] = now
            command = c.Progress(**self._about(), task_id=task.id, attempt_id=task.attempt_id or "")
            await self._store.commit((command,))

    async def _sessions(self) -> list[Session]:
        found = await self._store.open_sessions(self._namespace)
        return [session for session in found if session.host == FOREIGN]

    async def _session(self, worker: ForeignWorker) -> Session:
        """The worker's session, opened when it is first heard of."""
        await self._register(worker.tools)
        now = await self._store.now()
        for session in await self._sessions():
            if session.name == worker.name and session.lease_until > now:
                return session
        opened = c.OpenSession(
            **self._about(),
            session_id=self._runtime.ids.new(),
            kind="worker",
            name=worker.name,
            host=FOREIGN,
            pid=0,
            agents=tuple(tool for tool in worker.tools if _is_name(tool)),
            concurrency=worker.slots,
            lease=self._lease,
        )
        self._knows_none = False
        reply = await self._store.one(opened)
        if reply.session is None:
            raise EndwellError(f"no session for {worker.name}")
        return reply.session

    async def _register(self, tools: Sequence[str]) -> None:
        """Tools that only foreign workers serve can be submitted to as any other."""
        for tool in tools:
            if tool in self._registered or not _is_name(tool):
                continue
            if await self._store.agent(self._namespace, tool) is None:
                spec = c.AgentSpec(name=tool)
                await self._store.one(c.RegisterAgents(**self._about(), agents=(spec,)))
            self._registered.add(tool)

    def _about(self) -> dict[str, Any]:
        return {
            "command_id": self._runtime.ids.new(),
            "namespace": self._namespace,
            "actor": self._actor,
        }


def attempt_of(result: Result) -> str:
    """The attempt of one asking: who asked, and the id of the entry by which it did."""
    return f"{result.worker_id}:{result.entry_id}"


def _error(text: str) -> ErrorInfo:
    """`{"code", "message", "retryable"}` as JSON, or any text."""
    try:
        said = msgspec.json.decode(text, type=_SaidError)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = _SaidError(message=text or "failed without a reason")
    return ErrorInfo(
        code=content.clean_text(said.code, 64),
        type="foreign",
        message=content.clean_text(said.message, MESSAGE_LIMIT),
        retryable=said.retryable,
    )


class _SaidError(msgspec.Struct):
    message: str = ""
    code: str = "exception"
    retryable: bool = True


def _is_name(tool: str) -> bool:
    try:
        names.agent_name(tool)
    except BadInput:
        return False
    return True
