"""Foreign workers: programs that know only Redis and docs/protocol.md, held to the same rules as our own.

Each has a session in the store. Its lease is renewed from what the server says of its entries: a worker that
claims its entry to itself is alive. It asks with `claimed` and begins when the grant names the attempt of its
asking. Later reports count only while its own session holds the turn by that attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from endwell.errors import BadInput
from endwell.machine.claiming import is_grant_valid, offered_turn
from endwell.model import commands as c
from endwell.model import content
from endwell.model.facts import RETURNED
from endwell.model.moments import SECOND
from endwell.model.session import FOREIGN_HOST, Session, is_foreign
from endwell.model.task import ErrorInfo, Task, clean_error
from endwell.policy import foreign as rules
from endwell.runtime.clock import Clock
from endwell.settings import Settings
from endwell.store.actor import Actor
from endwell.store.contract import Store
from endwell.streams.entries import Delivery, ReportEntry
from endwell.streams.foreign_keys import ForeignRegistration, Grant, GrantKeys
from endwell.streams.task_streams import TaskStreams

log = logging.getLogger(__name__)

MESSAGE_LIMIT = 4000
NOTE_LIMIT = 1000
HELD_LIMIT = 1000
"""Most pending entries of one worker that are looked at."""
FORGET_PROGRESS_SECONDS = 3600.0
"""How long the last progress of an attempt is remembered that its worker no longer holds."""


class ForeignWorkers:
    """Answers the reports of foreign workers, and renews the leases of those that are alive."""

    def __init__(self, actor: Actor, clock: Clock, streams: TaskStreams, settings: Settings) -> None:
        self._actor = actor
        self._store = actor.store
        self._namespace = actor.namespace
        self._clock = clock
        self._streams = streams
        self._lease = int(settings.queue.VISIBILITY_TIMEOUT_S * SECOND)
        self._progress_seconds = settings.pmo.active_reap_seconds / 3
        self._progress_idle = min(self._lease, int(settings.pmo.active_reap_seconds * SECOND))
        self._progressed: dict[str, float] = {}
        self._allowed: Sequence[str] = settings.queue.foreign_agents
        self._has_none = False
        self.grants = ForeignGrants(self._store, streams.grants, namespace=self._namespace)

    async def handle_reports(self, reports: Sequence[ReportEntry]) -> list[ReportEntry]:
        """Handle each report by itself; returns the claims of turns that another worker must execute."""
        misplaced: list[ReportEntry] = []
        for report in reports:
            match report.status:
                case "claimed":
                    if not await self._answer_claim(report):
                        misplaced.append(report)
                case "succeeded" | "failed" | "progress" | "returned":
                    await self._hand_in(report)
                case "leaving":
                    await self._sign_off(report.worker_id)
        return misplaced

    async def _answer_claim(self, report: ReportEntry) -> bool:
        """Grant or deny the turn; False if the turn is still on offer, but not for this worker.

        Such a claim gets no answer: a denial carries the name of the offer, and would stop the next worker.
        """
        attempt, grant = attempt_of(report), _grant_of(report)
        task = await self._store.find_task(self._namespace, report.task_id)
        if task is not None and await self._claim_turn(task, report, attempt):
            await self._streams.grants.give_grant(grant, attempt)
        elif await self._is_on_offer(report):
            return False
        else:
            await self.grants.refuse(grant)
        return True

    async def _is_on_offer(self, report: ReportEntry) -> bool:
        task = await self._store.find_task(self._namespace, report.task_id)
        turn = offered_turn(task) if task is not None else None
        return turn is not None and turn.key == (report.turn_id, report.epoch)

    async def _claim_turn(self, task: Task, report: ReportEntry, attempt: str) -> bool:
        """Claim the turn in the store. Asked again after a crash, the store's first answer still stands."""
        if task.attempt_id == attempt:
            return True
        session = await self._session_of(report.worker_id)
        if session is None:
            log.warning("%s asks for a turn, but never said what it serves", report.worker_id)
            return False
        known = await self._store.agents(self._namespace)  # may differ from when the session was opened
        claim = self._actor.command(
            c.Claim,
            task_id=task.id,
            attempt_id=attempt,
            session_id=session.id,
            turn_id=report.turn_id,
            epoch=report.epoch,
            agents=rules.select_served(known, session.agents.split(), self._allowed),
        )
        (reply,) = await self._actor.commit((claim,))
        return reply.refusal is None

    async def _session_of(self, name: str) -> Session | None:
        """The live session of a worker; a new one if the worker has registered."""
        now = await self._store.now()
        for session in await self._foreign_sessions():
            if session.name == name and session.lease_until > now:
                return session
        worker = await self._streams.registrations.find(name)
        return None if worker is None else (await self._admit_workers([worker])).get(name)

    async def _hand_in(self, report: ReportEntry) -> None:
        task = await self._store.find_task(self._namespace, report.task_id)
        command = self._actor.command(
            c.ForeignReport,
            session_id=(task.session_id if task is not None else None) or "",
            worker=report.worker_id,
            report=self._command_of(report),
        )
        (reply,) = await self._actor.commit((command,))
        if reply.refusal is not None:
            log.warning("%s of %s: %s", report.status, report.worker_id, reply.refusal.message)
        await self.grants.revoke_lost([_grant_of(report)])
        await self.remove_served_entry(report)

    async def remove_served_entry(self, report: ReportEntry) -> None:
        """Remove the entry of a turn that no attempt holds: the worker's acknowledgement may get lost."""
        if await self.entry_of(report) is None:
            return
        task = await self._store.find_task(self._namespace, report.task_id)
        if task is None or (task.id, task.turn_id, task.epoch) != report.full_key or task.attempt_id is None:
            await self._streams.tasks.remove((report.message_id,))

    async def entry_of(self, report: ReportEntry) -> Delivery | None:
        """The entry that a report is about, which may name any: it offers this very turn to this worker.

        None if it offers another turn, or if another worker has read it.
        """
        entry = (await self._streams.read_deliveries((report.message_id,))).get(report.message_id)
        if entry is None or entry.full_key != report.full_key:
            return None
        is_anothers = await self._streams.tasks.pending.is_held_by_other(report.message_id, report.worker_id)
        return None if is_anothers else entry

    async def _sign_off(self, name: str) -> None:
        """Hand back the turns of a worker that leaves, which counts as no crash, and end its session."""
        await self._streams.registrations.remove(name)
        for session in await self._foreign_sessions():
            if session.name == name:
                about = {"session_id": session.id, "reason": "drain", "hands_back": True}
                await self._actor.commit((self._actor.command(c.CloseSession, **about),))
        await self.grants.revoke_all_lost()

    def _command_of(self, report: ReportEntry) -> c.Finish | c.FailTurn | c.HandBack | c.Progress:
        about = {"task_id": report.task_id, "attempt_id": report.attempt}
        if report.status == "progress":
            note = content.clean_text(report.note, NOTE_LIMIT) or None
            return self._actor.command(c.Progress, **about, note=note)
        if report.status == "returned":
            return self._actor.command(c.HandBack, **about, reason=RETURNED)
        output, error = read_ending(report)
        if error is not None:
            return self._actor.command(c.FailTurn, **about, error=error, fraction=self._actor.fraction())
        result_hash = content.fingerprint(output)
        return self._actor.command(c.Finish, **about, result=output, result_hash=result_hash)

    async def renew_leases(self) -> None:
        """Renew the leases of workers that are registered, and of those with fresh entries."""
        workers = {worker.name: worker for worker in await self._streams.registrations.all_live()}
        if not workers and self._has_none:
            return
        await self._admit_workers(list(workers.values()))
        sessions = await self._foreign_sessions()
        self._has_none = not sessions
        for session in sessions:
            await self._renew_lease(session, is_registered=session.name in workers)
        await self.grants.revoke_all_lost()

    async def _renew_lease(self, session: Session, *, is_registered: bool) -> None:
        held = await self._held_by(session)
        fresh = {task.id: task for task, idle_us in held if idle_us < self._lease}
        if not fresh and not is_registered:
            return
        idle = 0 if is_registered else min(idle_us for _, idle_us in held)
        heartbeat = self._actor.command(
            c.Heartbeat,
            session_id=session.id,
            lease=self._lease - idle,
            attempts=tuple((task.id, task.attempt_id or "") for task in fresh.values()),
        )
        await self._actor.commit((heartbeat,))
        for task in fresh.values():  # a grant expires, and a worker without one stops
            grant = Grant(task_id=task.id, turn_id=task.turn_id or "", epoch=task.epoch)
            await self._streams.grants.give_grant(grant, task.attempt_id or "")
        await self._record_progress([task for task, idle_us in held if idle_us < self._progress_idle])

    async def _held_by(self, session: Session) -> list[tuple[Task, int]]:
        """The turns that a worker holds by its pending entries, each with the microseconds it was idle."""
        pending = await self._streams.tasks.pending.held_by(session.name, HELD_LIMIT)
        idle_us = {each.message_id: each.idle_ms * 1000 for each in pending}
        entries = await self._streams.read_deliveries(list(idle_us))
        ids = [entry.task_id for entry in entries.values()]
        found = await self._store.tasks_by_ids(self._namespace, ids) if ids else []
        tasks = {task.id: task for task in found if task.session_id == session.id}
        return [
            (task, idle_us[message_id])
            for message_id, entry in entries.items()
            if (task := tasks.get(entry.task_id)) is not None
            and (task.turn_id, task.epoch) == (entry.turn_id, entry.epoch)
        ]

    async def _record_progress(self, tasks: Sequence[Task]) -> None:
        """Count heartbeats as progress, now and then."""
        now = self._clock.monotonic()
        last = self._progressed
        due = [t for t in tasks if now - last.setdefault(t.attempt_id or "", now) >= self._progress_seconds]
        held = {task.attempt_id for task in tasks}
        self._progressed = {
            attempt: at
            for attempt, at in last.items()
            if attempt in held or now - at < FORGET_PROGRESS_SECONDS
        }
        for task in due:
            attempt = task.attempt_id or ""
            self._progressed[attempt] = now
            await self._actor.commit((self._actor.command(c.Progress, task_id=task.id, attempt_id=attempt),))

    async def _foreign_sessions(self) -> list[Session]:
        found = await self._store.open_sessions(self._namespace)
        return [session for session in found if is_foreign(session)]

    async def _admit_workers(self, workers: Sequence[ForeignRegistration]) -> dict[str, Session]:
        """Register the agents of these workers and open the sessions that are missing, in one commit."""
        known = await self._store.agents(self._namespace)
        now = await self._store.now()
        wanted = [tool for worker in workers for tool in worker.tools]
        specs = rules.plan_registration(known, wanted, self._allowed, now)
        sessions = await self._foreign_sessions()
        live = {session.name for session in sessions if session.lease_until > now}
        room = max(rules.MAX_WORKERS - len(sessions), 0)
        new = [worker for worker in workers if worker.name not in live][:room]
        commands: list[c.Command] = [self._session_opening(worker, [*known, *specs]) for worker in new]
        if specs or any(spec.foreign_until is not None and spec.foreign_until <= now for spec in known):
            commands.append(self._actor.command(c.RegisterAgents, agents=specs, drops_expired=True))
        replies = await self._actor.commit(commands) if commands else []
        self._has_none = self._has_none and not new
        for reply in replies:
            if reply.refusal is not None:
                raise reply.refusal
        return {reply.session.name: reply.session for reply in replies if reply.session is not None}

    def _session_opening(
        self, worker: ForeignRegistration, registered: Sequence[c.AgentSpec]
    ) -> c.OpenSession:
        names = {spec.name for spec in registered}
        served = rules.select_served(registered, worker.tools, self._allowed)
        return self._actor.command(
            c.OpenSession,
            session_id=self._actor.new_id(),
            kind="worker",
            name=worker.name,
            host=FOREIGN_HOST,
            pid=0,
            agents=tuple(tool for tool in served if tool in names),
            concurrency=worker.slots,
            lease=self._lease,
        )


class ForeignGrants:
    """Revokes grants whose attempts no longer hold their turns, whichever way that ended.

    The server lists all grants, so that an orchestrator also finds those that another one gave.
    """

    def __init__(self, store: Store, keys: GrantKeys, *, namespace: str) -> None:
        self._store = store
        self._keys = keys
        self._namespace = namespace

    async def refuse(self, grant: Grant) -> None:
        """Tell the worker that asked that there is nothing to do; the grant of a live attempt stands."""
        await self.revoke_lost([grant])
        await self._keys.deny(grant)

    async def revoke_all_lost(self) -> int:
        """Revoke every grant whose attempt has lost its turn; how many."""
        return await self.revoke_lost(await self._keys.all_listed())

    async def revoke_lost(self, grants: list[Grant]) -> int:
        """Revoke those of these grants whose attempts have lost their turns; how many."""
        if not grants:
            return 0
        attempts = await self._keys.attempts_of(grants)
        ids = sorted({grant.task_id for grant in grants})
        tasks = {task.id: task for task in await self._store.tasks_by_ids(self._namespace, ids)}
        lost = [
            grant
            for grant, attempt in zip(grants, attempts, strict=True)
            if not is_grant_valid(tasks.get(grant.task_id), grant.turn_id, grant.epoch, attempt)
        ]
        await self._keys.revoke(lost)
        return len(lost)


def attempt_of(report: ReportEntry) -> str:
    """The attempt of a claim: the worker that asked, and the id of the entry by which it did."""
    return f"{report.worker_id}:{report.entry_id}"


def _grant_of(report: ReportEntry) -> Grant:
    return Grant(task_id=report.task_id, turn_id=report.turn_id, epoch=report.epoch)


def read_ending(report: ReportEntry) -> tuple[bytes, ErrorInfo | None]:
    """The output as it is stored, or the error with which the turn ended."""
    if report.status == "failed":
        return b"", _read_error(report.error)
    try:
        return content.encode(content.decode(report.output or b"null", what="output"), what="output"), None
    except BadInput as refusal:
        return b"", _output_error(refusal)


def _output_error(refusal: BadInput) -> ErrorInfo:
    """Text that is not JSON may be an accident; JSON that no store can keep would come again."""
    is_accident = refusal.code == "bad_json"
    code = "bad_result" if is_accident else "result_not_storable"
    return ErrorInfo(code=code, type="output", message=refusal.message, retryable=is_accident)


class ReportedError(msgspec.Struct):
    """The JSON object by which a worker may report an error."""

    message: str = ""
    code: str = "exception"
    retryable: bool = True


def _read_error(text: str) -> ErrorInfo:
    """A `ReportedError` as JSON, or any text."""
    error = content.read_as(text, ReportedError) or ReportedError(message=text or "failed without a reason")
    info = ErrorInfo(code=error.code, type="foreign", message=error.message, retryable=error.retryable)
    return clean_error(info, message_limit=MESSAGE_LIMIT)
