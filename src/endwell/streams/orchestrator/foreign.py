"""Foreign workers: programs that know only Redis and docs/protocol.md, held to the same rules as our own.

Each has a session in the store. Its lease is renewed from what the server says of its entries: a worker that
claims its entry to itself is alive. It asks with `claimed`, begins when the grant names the attempt of its
asking, and what it says afterwards counts only while its own session holds the turn by that attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from endwell.errors import BadInput
from endwell.machine.offers import offered_turn
from endwell.model import commands as c
from endwell.model import content
from endwell.model.facts import RETURNED
from endwell.model.session import FOREIGN_HOST, Session, is_foreign
from endwell.model.task import ErrorInfo, Task, clean_error
from endwell.policy import foreign as rules
from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.settings import Settings
from endwell.store.contract import Store
from endwell.streams.commands import ForeignRegistration, StreamOrchestrator
from endwell.streams.entries import Result
from endwell.streams.orchestrator.grants import ForeignGrants

log = logging.getLogger(__name__)

MESSAGE_LIMIT = 4000
NOTE_LIMIT = 1000


class ForeignWorkers:
    """`hear(results)` sees to what they say; `renew()` keeps the leases of those that are alive."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        stream: StreamOrchestrator,
        settings: Settings,
        *,
        namespace: str,
        actor: str,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._stream = stream
        self._namespace = namespace
        self._actor = actor
        self._lease = int(settings.queue.VISIBILITY_TIMEOUT_S * SECOND)
        self._progress_seconds = settings.pmo.active_reap_seconds / 3
        self._progress_idle = min(self._lease, int(settings.pmo.active_reap_seconds * SECOND))
        self._progressed: dict[str, float] = {}
        self._allowed: Sequence[str] = settings.queue.foreign_agents
        self._knows_none = False
        self.grants = ForeignGrants(store, stream, namespace=namespace)

    async def hear(self, results: Sequence[Result]) -> list[Result]:
        """Handle each report by itself; the claims of turns that another worker must carry out."""
        misplaced: list[Result] = []
        for result in results:
            match result.status:
                case "claimed":
                    if not await self._claimed(result):
                        misplaced.append(result)
                case "succeeded" | "failed" | "progress" | "returned":
                    await self._reported(result)
                case "leaving":
                    await self._leaving(result)
        return misplaced

    async def _claimed(self, result: Result) -> bool:
        """Grant or deny the turn; False if the turn is still on offer, but not for this worker.

        Such a claim gets no answer: a denial carries the name of the offer, and would stop the next worker.
        """
        task = await self._store.find_task(self._namespace, result.task_id)
        if task is not None and await self._is_granted(task, result, attempt_of(result)):
            await self.grants.give(task.id, result.turn_id, result.epoch, attempt_of(result))
        elif await self._is_on_offer(result):
            return False
        else:
            await self.grants.refuse(result.task_id, result.turn_id, result.epoch)
        return True

    async def _is_on_offer(self, result: Result) -> bool:
        task = await self._store.find_task(self._namespace, result.task_id)
        turn = offered_turn(task) if task is not None else None
        return turn is not None and turn.key == (result.turn_id, result.epoch)

    async def _is_granted(self, task: Task, result: Result, attempt: str) -> bool:
        """Asked again after a crash, the store's first answer still stands."""
        if task.attempt_id == attempt:
            return True
        session = await self._session_of(result.worker_id)
        if session is None:
            log.warning("%s asks for a turn, but never said what it serves", result.worker_id)
            return False
        known = await self._store.agents(self._namespace)  # may differ from when the session was opened
        claim = c.Claim(
            **self._about(),
            task_id=task.id,
            attempt_id=attempt,
            session_id=session.id,
            turn_id=result.turn_id,
            epoch=result.epoch,
            agents=rules.select_served(known, session.agents.split(), self._allowed),
        )
        (reply,) = await self._store.commit((claim,))
        return reply.refusal is None

    async def _session_of(self, name: str) -> Session | None:
        """The session of a worker that says, or has said while its session lives, what it serves."""
        now = await self._store.now()
        for session in await self._sessions():
            if session.name == name and session.lease_until > now:
                return session
        worker = await self._stream.foreign_worker(name)
        return None if worker is None else (await self._admitted([worker])).get(name)

    async def _reported(self, result: Result) -> None:
        task = await self._store.find_task(self._namespace, result.task_id)
        report = c.ForeignReport(
            **self._about(),
            session_id=(task.session_id if task is not None else None) or "",
            worker=result.worker_id,
            report=self._report(result),
        )
        (reply,) = await self._store.commit((report,))
        if reply.refusal is not None:
            log.warning("%s of %s: %s", result.status, result.worker_id, reply.refusal.message)
        await self.grants.settle(result.task_id, result.turn_id, result.epoch)
        await self.clear_served(result)

    async def clear_served(self, result: Result) -> None:
        """Acknowledge the entry of a turn that has ended, should the worker's acknowledgement get lost.

        The message may name any entry: only one that carries this turn is removed, and only once no attempt
        holds the turn.
        """
        entry = (await self._stream.deliveries((result.message_id,))).get(result.message_id)
        named = (result.task_id, result.turn_id, result.epoch)
        if entry is None or (entry.task_id, entry.turn_id, entry.epoch) != named:
            return
        task = await self._store.find_task(self._namespace, result.task_id)
        if task is None or (task.turn_id, task.epoch) != named[1:] or task.attempt_id is None:
            await self._stream.clear((result.message_id,))

    async def _leaving(self, result: Result) -> None:
        """A worker signs off: its turns are handed back, which counts as no crash, and its session ends."""
        await self._stream.forget_worker(result.worker_id)
        for session in await self._sessions():
            if session.name == result.worker_id:
                closing = c.CloseSession(
                    **self._about(), session_id=session.id, reason="drain", hands_back=True
                )
                await self._store.commit((closing,))
        await self.grants.sweep()

    def _report(self, result: Result) -> c.Finish | c.FailTurn | c.HandBack | c.Progress:
        about = {**self._about(), "task_id": result.task_id, "attempt_id": result.attempt}
        match result.status:
            case "progress":
                return c.Progress(**about, note=content.clean_text(result.note, NOTE_LIMIT) or None)
            case "returned":
                return c.HandBack(**about, reason=RETURNED)
            case _:
                return self._ending(result)

    def _ending(self, result: Result) -> c.Finish | c.FailTurn:
        about = {**self._about(), "task_id": result.task_id, "attempt_id": result.attempt}
        output, error = read_ending(result)
        if error is not None:
            return c.FailTurn(**about, error=error, fraction=self._runtime.ids.fraction())
        return c.Finish(**about, result=output, result_hash=content.fingerprint(output))

    async def renew(self) -> None:
        """Those that say what they serve, and those whose entries are fresh."""
        workers = {worker.name: worker for worker in await self._stream.foreign_workers()}
        if not workers and self._knows_none:
            return
        await self._admitted(list(workers.values()))
        sessions = await self._sessions()
        self._knows_none = not sessions
        for session in sessions:
            await self._renewed(session, is_here=session.name in workers)
        await self.grants.sweep()

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
            await self.grants.give(task.id, task.turn_id or "", task.epoch, task.attempt_id or "")
        await self._progress([task for task, idle_us in idle if idle_us < self._progress_idle])

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
        """Count heartbeats as progress, now and then; an entry left alone for too long shows none."""
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
        return [session for session in found if is_foreign(session)]

    async def _admitted(self, workers: Sequence[ForeignRegistration]) -> dict[str, Session]:
        """Register what these workers serve, and open sessions for those without, in one commit."""
        known = await self._store.agents(self._namespace)
        now = await self._store.now()
        wanted = [tool for worker in workers for tool in worker.tools]
        specs = rules.plan_registration(known, wanted, self._allowed, now)
        sessions = await self._sessions()
        live = {session.name for session in sessions if session.lease_until > now}
        registered = [*known, *specs]
        room = rules.MAX_WORKERS - len(sessions)
        new = [worker for worker in workers if worker.name not in live][: max(room, 0)]
        commands: list[c.Command] = [self._opening(worker, registered) for worker in new]
        if specs:
            commands.append(c.RegisterAgents(**self._about(), agents=specs, drops_expired=True))
        elif any(spec.foreign_until is not None and spec.foreign_until <= now for spec in known):
            commands.append(c.RegisterAgents(**self._about(), agents=(), drops_expired=True))
        opened = await self._store.commit(commands) if commands else []
        self._knows_none = self._knows_none and not new
        for reply in opened:
            if reply.refusal is not None:
                raise reply.refusal
        return {reply.session.name: reply.session for reply in opened if reply.session is not None}

    def _opening(self, worker: ForeignRegistration, registered: Sequence[c.AgentSpec]) -> c.OpenSession:
        names = {spec.name for spec in registered}
        served = rules.select_served(registered, worker.tools, self._allowed)
        return c.OpenSession(
            **self._about(),
            session_id=self._runtime.ids.new(),
            kind="worker",
            name=worker.name,
            host=FOREIGN_HOST,
            pid=0,
            agents=tuple(tool for tool in served if tool in names),
            concurrency=worker.slots,
            lease=self._lease,
        )

    def _about(self) -> dict[str, Any]:
        return {
            "command_id": self._runtime.ids.new(),
            "namespace": self._namespace,
            "actor": self._actor,
        }


def attempt_of(result: Result) -> str:
    """The attempt of one asking: who asked, and the id of the entry by which it did."""
    return f"{result.worker_id}:{result.entry_id}"


def read_ending(result: Result) -> tuple[bytes, ErrorInfo | None]:
    """The output as it is stored, or the error with which the turn ended."""
    if result.status == "failed":
        return b"", _error(result.error)
    try:
        return content.encode(content.decode(result.output or b"null", what="output"), what="output"), None
    except BadInput as refusal:
        return b"", _output_error(refusal)


def _output_error(refusal: BadInput) -> ErrorInfo:
    """Text that is not JSON may be an accident; JSON that no store can keep would come again."""
    is_accident = refusal.code == "bad_json"
    code = "bad_result" if is_accident else "result_not_storable"
    return ErrorInfo(code=code, type="output", message=refusal.message, retryable=is_accident)


def _error(text: str) -> ErrorInfo:
    """`{"code", "message", "retryable"}` as JSON, or any text."""
    said = content.read_as(text, _SaidError) or _SaidError(message=text or "failed without a reason")
    info = ErrorInfo(code=said.code, type="foreign", message=said.message, retryable=said.retryable)
    return clean_error(info, message_limit=MESSAGE_LIMIT)


class _SaidError(msgspec.Struct):
    message: str = ""
    code: str = "exception"
    retryable: bool = True
