"""The worker: one loop that hands in what has ended and takes what is ready, in one commit each way round.

Under load hundreds of results and claims share a transaction; when idle a doorbell wakes the loop, and
polling finds what a lost ring did not announce.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from endwell.doorbell.contract import Doorbell, is_rung
from endwell.errors import NotFound, StoreError
from endwell.model import commands as c
from endwell.policy.guard import is_suspect
from endwell.policy.limits import Limits
from endwell.runtime.base import Runtime
from endwell.runtime.running_calls import RunningCalls
from endwell.runtime.threads import ThreadPool
from endwell.settings import Settings
from endwell.store.contract import Store
from endwell.store.effect_store import EffectStore
from endwell.store.probe import ProbeResult
from endwell.store.rows import Reply
from endwell.streams.intake import StreamIntake
from endwell.turn import after_suspension
from endwell.turn.after_suspension import Settled
from endwell.turn.agents import Agent
from endwell.turn.directory import Directory
from endwell.turn.endings import attempt_of, fitting, hand_back, tell_refused
from endwell.turn.turns import Ending, Turns
from endwell.turn.versions import OtherVersions
from endwell.worker.health import Health
from endwell.worker.heartbeat import HeldWork
from endwell.worker.session import PAUSE_SECONDS, WorkerSession
from endwell.worker.stream_source import answered, claims_of
from endwell.worker.watchdog import WorkerWatchdog
from endwell.worker.work_probe import WorkProbe

log = logging.getLogger(__name__)

CLAIM_LIMIT = 128
"""Most tasks taken in one commit."""
HAND_IN_LIMIT = 250
"""Most endings in one commit: with a claim they still share one transaction, so all of them count or none."""


class Worker:
    """One session at a time. `run()` works until `stop()`; tests call `run_once()`."""

    def __init__(
        self,
        store: Store,
        bell: Doorbell,
        runtime: Runtime,
        settings: Settings,
        limits: Limits,
        *,
        namespace: str,
        agents: Mapping[str, Agent],
        known: Mapping[str, Agent] | None = None,
        name: str | None = None,
        concurrency: int | None = None,
        effects: EffectStore | None = None,
        calls: RunningCalls | None = None,
        intake: StreamIntake | None = None,
    ) -> None:
        self._store = store
        self._bell = bell
        self._intake = intake
        self._runtime = runtime
        self._settings = settings.worker
        self._limits = limits
        self._namespace = namespace
        self._agents = dict(agents)
        self._versions = {name: agent.version for name, agent in agents.items() if agent.version}
        self.concurrency = concurrency or settings.worker.concurrency
        self.name = name or f"{runtime.host_name()}-{runtime.process_id()}"
        self.directory = Directory(store, namespace, known or agents, settings.approval)
        self._lookout = WorkProbe(
            store, runtime, namespace=namespace, agents=tuple(agents), settings=settings.worker
        )
        also, told = self._lookout.asked, self._told
        self.watch = WorkerWatchdog(
            store, runtime, settings, namespace=namespace, actor=self.name, also=also, told=told
        )
        self._turns = self._new_turns(effects, RunningCalls() if calls is None else calls)
        self._session = self._new_session()
        self._outbox: list[Ending] = []
        self._handing_in: list[list[Ending]] = []
        self._claiming: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._may_be_work = True
        self._was_full = False
        self._others = OtherVersions(store, namespace, agents)
        self._beside: asyncio.Task[None] | None = None
        self._stopping = False
        self.refused = 0
        self.failures = 0

    def _new_turns(self, effects: EffectStore | None, calls: RunningCalls) -> Turns:
        # Threads of their own: functions that hang must not keep the worker from saying goodbye.
        threads = ThreadPool(self.concurrency, "endwell-agent")
        return Turns(
            self._store,
            replace(self._runtime, pool=threads),
            self._agents,
            self._settings,
            self._limits,
            effects=effects,
            calls=calls,
            directory=self.directory,
            lease_left=lambda: self._session.seconds_left,
            ended=self._note,
        )

    def _new_session(self) -> WorkerSession:
        return WorkerSession(
            self._store,
            self._runtime,
            self._settings,
            namespace=self._namespace,
            name=self.name,
            agents=tuple(self._agents),
            versions={name: agent.version or "" for name, agent in self._agents.items()},
            concurrency=self.concurrency,
            named=self._named,
            registering=self._registering,
            on_stale=self._let_go,
            on_lost=self._lost,
        )

    def _registering(self, session_id: str) -> c.RegisterAgents:
        return self.directory.registering(self._agents.values(), self._new_id(), self.name, session_id)

    @property
    def session_id(self) -> str:
        """The session it works under; empty while it has none."""
        return self._session.id

    def health(self) -> Health:
        """How this worker is, for whoever watches the process."""
        overseen = self.watch.overseen
        return Health(
            has_lease=self._session.is_good,
            tasks=self._turns.count,
            is_overseen=overseen.is_overseen,
            last_pmo_tick=overseen.last_tick,
            failures=self.failures + self.watch.failures,
        )

    async def start(self) -> None:
        """Register the agents, open a session and start its heartbeat."""
        for agent in self._agents.values():
            if agent.outside is not None:
                await agent.outside.prepare()
        await self._session.open()
        self._unsubscribe = self._bell.subscribe(self._heard)
        if self._intake is not None:
            await self._intake.start(room=self._room, wake=self._wake.set)

    async def run(self) -> None:
        """Work until told to stop, then drain. The watchdog runs beside it."""
        watching = self._runtime.spawn(self.watch.run(), f"endwell-watch-{self.name}")
        try:
            while not self._stopping:
                await self._round()
            if self._beside is not None:
                await asyncio.wait([self._beside])
            if self._intake is not None:
                await self._intake.stop()
            await self._drain()
        finally:
            self.watch.stop()
        await watching

    async def _round(self) -> None:
        try:
            self._work_beside()
            if not await self.run_once():
                await self._rest()
        except Exception:
            self.failures += 1
            log.exception("worker %s: a round failed", self.name)
            await self._runtime.sleep(PAUSE_SECONDS)

    def _work_beside(self) -> None:
        """Where a store works elsewhere, a backlog is worked off on two lines: one's turns run, one waits."""
        if self._has_other_line and (self._beside is None or self._beside.done()):
            self._beside = self._runtime.spawn(self._work_off(), self.name)

    async def _work_off(self) -> None:
        while not self._stopping and await self.run_once():
            pass

    async def run_once(self) -> bool:
        """Hand in what has ended and take what is ready. False when there was nothing to do."""
        await self._runtime.sleep(0)  # let turns that are about to end, end: one commit for all of them
        if self._intake is not None and self._intake.is_up:
            return await self._take_delivered(self._intake)
        claim = self._claim()
        if claim is None:
            return await self._hand_in()
        self._claiming[claim.command_id] = claim.limit
        try:
            replies = await self._exchange((await self._others.look_past(claim),))
            return replies is not None and self._take(claim, replies[-1])
        finally:
            del self._claiming[claim.command_id]

    async def _take_delivered(self, intake: StreamIntake) -> bool:
        """Hand in what has ended and ask the store for what a queue brought, in one commit."""
        ended = sum(map(len, self._outbox))  # which go first: what has ended must not wait ever longer
        most = self._share(min(self._room(), CLAIM_LIMIT))
        deliveries = intake.arrived(min(most, max(HAND_IN_LIMIT + 1 - ended, 0)))
        if not deliveries:
            return await self._hand_in()
        batch, session_id = self._new_id(), self.session_id
        about: dict[str, Any] = {"namespace": self._namespace, "actor": self.name, "session_id": session_id}
        about |= {"served_elsewhere": await self._others.served_elsewhere()}
        claims = claims_of(deliveries, batch=batch, versions=self._versions, **about)
        self._claiming[batch] = len(claims)
        try:
            replies = await self._exchange(claims)
            if replies is None:
                intake.put_back(deliveries)
                return False
            found = await answered(self._store, deliveries, replies[-len(claims) :])
            if found.is_lost:
                self._session.lose(session_id, "the store refused its claims")
            intake.put_back(found.again)
            intake.drop(found.void)
            if session_id != self.session_id:
                return False  # the lease went while we asked; what we were given is not ours any more
            for delivery, offer in found.granted:
                intake.began(offer.task.attempt_id or "", delivery)
                self._turns.begin(offer, self.name)
        finally:
            del self._claiming[batch]
        self._was_full = len(deliveries) == most
        return True

    def _room(self) -> int:
        """How many more turns may be begun now."""
        return 0 if self._stopping or not self._session.is_good else max(self._free, 0)

    async def _hand_in(self) -> bool:
        """False when there was nothing to hand in, or nobody to take it."""
        return bool(self._outbox) and await self._exchange() is not None

    async def _exchange(self, claims: Sequence[c.Command] = ()) -> list[Reply] | None:
        """One commit: endings in, claims with them. The replies; None when the store is away."""
        session_id, handed_in = self.session_id, fitting(self._outbox, HAND_IN_LIMIT + 1 - len(claims))
        self._handing_in.append(handed_in)
        del self._outbox[: len(handed_in)]
        commands: list[c.Command] = [command for ending in handed_in for command in ending]
        commands += claims
        try:
            replies = await self._store.commit(commands)
        except StoreError as error:
            replies = [Reply(refusal=error)] * len(commands)
        except BaseException:
            self._keep(session_id, handed_in, handed_in)
            raise
        self._keep(session_id, handed_in, self._settle(handed_in, replies))
        refusal = replies[-1].refusal
        if not isinstance(refusal, StoreError):
            return replies
        log.warning("worker %s: %s (%s)", self.name, refusal.message, refusal.code)
        self._may_be_work = True
        await self._runtime.sleep(PAUSE_SECONDS)
        return None

    def _keep(self, session_id: str, handed_in: list[Ending], unsettled: list[Ending]) -> None:
        """Nothing that has ended is forgotten, unless the lease it ran under is gone."""
        if session_id == self.session_id:
            self._outbox[:0] = unsettled
        self._handing_in = [each for each in self._handing_in if each is not handed_in]

    def _named(self) -> HeldWork:
        """What we hold is ours until the store has its ending. The heartbeat's thread asks this."""
        ended = [*self._outbox, *(ending for some in tuple(self._handing_in) for ending in some)]
        held = (*self._turns.held(), *((last.task_id, attempt_of(last)) for *_, last in ended))
        return HeldWork(held, tuple(self._claiming), self._turns.doing(), self.watch.tick_age)

    def _claim(self) -> c.ClaimNext | None:
        free = self._share(min(self._free, CLAIM_LIMIT))
        if self._stopping or not self._may_be_work or free <= 0 or not self._session.is_good:
            return None
        self._may_be_work = self._has_other_line and not self._claiming  # a ring meanwhile counts again
        self._lookout.claimed()
        live = self._turns.live()
        has_suspect = any(is_suspect(turn.task.crash_count, self._limits.crash_limit) for turn in live)
        return c.ClaimNext(
            command_id=self._new_id(),
            namespace=self._namespace,
            actor=self.name,
            session_id=self.session_id,
            agents=tuple(self._agents),
            limit=free,
            may_take_suspect=not has_suspect and not self._claiming,
            versions=self._versions,
        )

    @property
    def _has_other_line(self) -> bool:
        return self._was_full and self._store.parallel_commits > 1

    def _share(self, free: int) -> int:
        """Of a backlog the other line takes its part."""
        return min(free, (self.concurrency + 1) // 2) if self._has_other_line else free

    @property
    def _free(self) -> int:
        return self.concurrency - self._turns.count - sum(self._claiming.values())

    def _settle(self, endings: Sequence[Ending], replies: Sequence[Reply]) -> list[Ending]:
        """What the store could not take, for another try."""
        unsettled: list[Ending] = []
        done: list[str] = []
        answers = iter(replies)
        for ending in endings:
            settled = [(command, next(answers)) for command in ending]
            if any(isinstance(reply.refusal, StoreError) for _, reply in settled):
                unsettled.append(ending)
                continue
            done.append(attempt_of(ending[-1]))
            for command, reply in settled:
                if reply.refusal is not None:
                    self.refused += tell_refused(command, reply.refusal)
            if isinstance(ending[-1], c.Suspend):
                self.watch.nudge()  # its waits may be over before the next tick
                self._runtime.spawn(self._after_suspend(settled), "endwell-deliver")
        if self._intake is not None and done:
            self._intake.done(done)
        return unsettled

    async def _after_suspend(self, settled: Settled) -> None:
        """Hand on what came for the turn while it suspended. If that fails, a watchdog does it."""
        try:
            follow = await after_suspension.after(self._store, self._runtime, self.name, settled)
            if follow:
                await self._store.commit(follow)
        except StoreError as error:
            log.warning("answers for suspended turns must wait: %s", error.message)

    def _take(self, claim: c.ClaimNext, reply: Reply) -> bool:
        if isinstance(reply.refusal, NotFound):
            self._session.lose(claim.session_id, reply.refusal.message)
        if claim.session_id != self.session_id:
            return False  # the lease went while we asked; what we were given is not ours any more
        self._was_full = len(reply.taken) == claim.limit
        self._may_be_work |= self._was_full or self._others.has_passed_more(reply.passed_over)
        for offer in reply.taken:
            self._turns.begin(offer, self.name)
        return bool(reply.taken)

    def _note(self, attempt_id: str, ending: Ending) -> None:
        """A turn is over; empty when it is not ours any more, taken or handed over: nothing is to be said."""
        if ending:
            self._outbox.append(ending)
        elif self._intake is not None and attempt_id:
            self._intake.done((attempt_id,))
        if self._intake is not None:
            self._intake.nudge()
        self._wake.set()

    def _heard(self, topics: frozenset[str]) -> None:
        if is_rung(f"held:{self._namespace}:{self.session_id}", topics):
            self._session.beat_now()
        if any(is_rung(f"work:{self._namespace}:{agent}", topics) for agent in self._agents):
            self._may_be_work = True
            if not (self._intake and self._intake.is_up):  # which wakes us when it has brought something
                self._wake.set()

    def _told(self, seen: ProbeResult) -> None:
        """The watchdog has looked, for us too."""
        self._expect(self._lookout.take(seen))
        self._wake.set()

    def _expect(self, is_work: bool) -> None:
        """Whether the store has something for us; if a queue is to bring it, it should come soon."""
        self._may_be_work = self._may_be_work or is_work
        if self._intake is not None:
            self._intake.expect(is_work)

    @property
    def _is_called(self) -> bool:
        if self._intake is not None and self._intake.is_up:
            return self._intake.waiting > 0
        return self._may_be_work

    async def _rest(self) -> None:
        """Until a ring, an ending, the next start time, or the poll interval."""
        self._runtime.give_way()
        start = await self._seconds_to_next_start()
        may_claim = self._is_called and self._free > 0 and self._session.is_good
        if self._outbox or self._stopping or may_claim:
            return
        self._wake.clear()  # what it stood for has been seen to
        poll = self._poll_seconds
        rung = await self._runtime.wait(self._wake, min(start, poll))
        if not rung and start <= poll:
            self._may_be_work = True
        elif not rung or self._poll_seconds <= 0:
            await self._poll()

    @property
    def _pace_seconds(self) -> float:
        return self._lookout.pace_seconds(is_rung=self._bell.health().connected)

    @property
    def _poll_seconds(self) -> float:
        return self._lookout.seconds_to_next_look(self._pace_seconds)

    async def _poll(self) -> None:
        self._lookout.begin()
        if self._free <= 0:
            self._may_be_work = True
            return
        if not self._lookout.is_free and self.watch.hasten(self._pace_seconds):
            return  # its tick looks for us as well: one statement instead of two
        try:
            self._expect(await self._lookout.look())
        except StoreError:
            self._may_be_work = True  # the claim will say what is wrong

    async def _seconds_to_next_start(self) -> float:
        """Endless where we could take nothing, or a queue would bring it."""
        may_claim = self._free > 0 and self._session.is_good and not self._claiming
        if not may_claim or (self._intake is not None and self._intake.is_up):
            return math.inf
        try:
            return await self._lookout.seconds_to_next_start()
        except StoreError:
            return self._settings.poll_seconds

    def _let_go(self, attempts: tuple[str, ...]) -> None:
        """These attempts are no longer ours: stop them, say nothing more about them."""
        for attempt in attempts:
            self._turns.abandon(attempt)
        if self._intake is not None:
            self._intake.done(attempts)

    def _lost(self) -> None:
        """Nothing is ours any more, also not what has ended and was not handed in."""
        self._turns.abandon_all()
        self._outbox.clear()
        self._may_be_work = True
        if self._intake is not None:
            self._intake.forget()

    def stop(self) -> None:
        """No new claims; `run` drains and returns."""
        self._stopping = True
        self._wake.set()

    async def _drain(self) -> None:
        """Finish what runs, within the limit; hand the rest back, which costs the tasks nothing."""
        deadline = self._runtime.clock.monotonic() + self._settings.drain_seconds
        while self._outbox or self._turns.live():
            left = deadline - self._runtime.clock.monotonic()
            if left <= 0:
                break
            if not self._outbox:
                await self._runtime.wait(self._wake, left)
                self._wake.clear()
            await self._hand_in()
        live = self._turns.live()
        self._outbox += [(hand_back(t.task, t.attempt_id, self._new_id(), self.name),) for t in live]
        self._turns.abandon_all()
        while self._outbox and await self._hand_in():
            pass

    async def close(self) -> None:
        """Say goodbye, unless something is still at work here: no more beats, and the session ends now."""
        self._unsubscribe()
        if self._intake is not None:
            await self._intake.close()
        for agent in self._agents.values():
            if agent.outside is not None:
                await agent.outside.close()
        await self._session.close(self._turns.end_reason)

    def _new_id(self) -> str:
        return self._runtime.ids.new()
