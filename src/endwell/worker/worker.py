"""The worker: a loop that hands in endings and claims new turns, both in one commit.

Under load hundreds of endings and claims share a transaction. When idle, a doorbell wakes the loop, and a
look at the store once per interval finds work whose ring was lost.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from endwell.doorbell.contract import Doorbell, is_rung
from endwell.errors import StoreError
from endwell.model import commands as c
from endwell.policy.guard import is_suspect
from endwell.runtime.threads import ThreadPool
from endwell.settings import Settings
from endwell.store.actor import Actor
from endwell.store.probe import ProbeResult
from endwell.store.rows import Reply
from endwell.streams.intake import StreamIntake
from endwell.turn.agents import Agent
from endwell.turn.endings import EndedTurn, LostTurn, TurnEnd, hand_back, log_refusal
from endwell.turn.recorder import TurnResources
from endwell.turn.turns import Turns
from endwell.worker.heartbeat import HeldWork
from endwell.worker.outbox import Answered, Outbox, answered_endings, commands_after_suspension
from endwell.worker.session import PAUSE_SECONDS, WorkerSession
from endwell.worker.store_source import Capacity, PendingClaim, SourceParts, StoreSource
from endwell.worker.stream_source import StreamSource
from endwell.worker.watchdog import WorkerWatchdog

log = logging.getLogger(__name__)

CLAIM_LIMIT = 128
"""At most this many tasks are claimed in one commit."""
COMMIT_LIMIT = 251
"""At most this many commands go in one commit, which is not split: it is stored whole or not at all."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a worker. If not `is_overseen`, no PMO ticks, so nothing ends what hangs."""

    has_lease: bool
    tasks: int
    is_overseen: bool
    last_pmo_tick: int | None
    failures: int


class Worker:
    """One session at a time. `run()` works until `stop()`; tests call `run_once()`."""

    def __init__(
        self,
        actor: Actor,
        bell: Doorbell,
        settings: Settings,
        resources: TurnResources,
        agents: Mapping[str, Agent],
        *,
        concurrency: int | None = None,
        intake: StreamIntake | None = None,
    ) -> None:
        self.name = actor.name
        self.agents = dict(agents)
        self.concurrency = concurrency or settings.worker.concurrency
        self._actor = actor
        self._bell = bell
        self._settings = settings.worker
        self._runtime = runtime = resources.runtime
        self._limits = resources.limits
        self._turns = self._new_turns(resources)
        self._session = WorkerSession(actor, runtime, settings.worker, resources.directory, self)
        self._source = self._new_source(intake)
        self.watchdog = WorkerWatchdog(
            actor, runtime, settings, questions=self._source.questions, on_result=self.on_probe_result
        )
        self._outbox = Outbox()
        self._claims: dict[str, PendingClaim] = {}
        self._wake = asyncio.Event()
        self._helper: asyncio.Task[None] | None = None
        self._stopping = False
        self.refused = 0
        self.failures = 0

    def _new_source(self, intake: StreamIntake | None) -> StoreSource:
        parts = SourceParts(
            actor=self._actor,
            agents=self.agents,
            session=self._session,
            bell=self._bell,
            clock=self._runtime.clock,
            settings=self._settings,
            tick_if_due=lambda seconds: self.watchdog.tick_if_due(seconds),
        )
        return StreamSource(parts, intake) if intake else StoreSource(parts)

    def _new_turns(self, resources: TurnResources) -> Turns:
        # Threads of their own: functions that hang must not keep the worker from closing its session.
        threads = ThreadPool(self.concurrency, "endwell-agent")
        return Turns(
            replace(resources, runtime=replace(resources.runtime, pool=threads)),
            self.agents,
            lease_left=lambda: self._session.seconds_left,
            on_end=self.on_turn_end,
        )

    @property
    def session_id(self) -> str:
        """The session it works under; empty while it has none."""
        return self._session.id

    def health(self) -> Health:
        pmo = self.watchdog.pmo
        return Health(
            has_lease=self._session.is_good,
            tasks=self._turns.slots_taken,
            is_overseen=pmo.is_overseen,
            last_pmo_tick=pmo.last_tick,
            failures=self.failures + self.watchdog.failures,
        )

    async def start(self) -> None:
        """Register the agents, open a session and start its heartbeat."""
        for agent in self.agents.values():
            if agent.outside is not None:
                await agent.outside.prepare()
        await self._session.open()
        self._unsubscribe = self._bell.subscribe(self.on_doorbell)
        await self._source.start(room=self._free_room, wake=self._wake.set)

    async def run(self) -> None:
        """Work until `stop()`, then drain. The watchdog runs beside it."""
        watching = self._runtime.spawn(self.watchdog.run(), f"endwell-watch-{self.name}")
        try:
            while not self._stopping:
                await self._run_round()
            if self._helper is not None:
                await asyncio.wait([self._helper])
            await self._source.stop()
            await self._drain_turns()
        finally:
            self.watchdog.stop()
        await watching

    async def _run_round(self) -> None:
        try:
            if self._has_helper and (self._helper is None or self._helper.done()):
                self._helper = self._runtime.spawn(self._help_with_backlog(), self.name)
            if not await self.run_once():
                await self._wait_for_work()
        except Exception:
            self.failures += 1
            log.exception("worker %s: a round failed", self.name)
            await self._runtime.sleep(PAUSE_SECONDS)

    @property
    def _has_helper(self) -> bool:
        """Whether to run a second loop, which works while the first waits for its commit."""
        return self._source.was_full and self._actor.store.parallel_commits > 1

    async def _help_with_backlog(self) -> None:
        while not self._stopping and await self.run_once():
            pass

    async def run_once(self) -> bool:
        """Commit endings and claim turns. False when there was nothing to do."""
        await self._runtime.sleep(0)  # let turns that are about to end, end: one commit for all of them
        claim = self._source.begin_claim(self._next_capacity())
        if claim is None:
            return await self._hand_in()
        self._claims[claim.id] = claim
        try:
            return await self._claim_turns(claim)
        finally:
            del self._claims[claim.id]

    async def _claim_turns(self, claim: PendingClaim) -> bool:
        commands = await self._source.claim_commands(claim)
        replies = await self._commit_batch(commands)
        if replies is None:
            self._source.on_no_answer(claim)
            return False
        offers = await self._source.on_answer(claim, replies)
        for offer in offers:
            self._turns.begin(offer, self.name)
        return bool(offers)

    def _next_capacity(self) -> Capacity:
        """What the next commit may claim. Endings go first, so that they do not pile up."""
        turns = min(self._free_room(), CLAIM_LIMIT)
        if self._has_helper:
            turns = min(turns, (self.concurrency + 1) // 2)
        live = self._turns.live_turns()
        has_suspect = any(is_suspect(turn.task.crash_count, self._limits.crash_limit) for turn in live)
        return Capacity(
            session_id=self.session_id,
            turns=turns,
            commands=max(COMMIT_LIMIT - self._outbox.command_count, 0),
            may_take_suspect=not has_suspect and not self._claims,
            is_shared=self._has_helper and not self._claims,
        )

    def _free_room(self) -> int:
        return max(self._free_slots, 0) if self._session.is_good and not self._stopping else 0

    @property
    def _free_slots(self) -> int:
        return (
            self.concurrency - self._turns.slots_taken - sum(claim.limit for claim in self._claims.values())
        )

    async def _commit_batch(self, claims: Sequence[c.Command] = ()) -> list[Reply] | None:
        """Commit endings and claims together; the replies to the claims, or None without an answer."""
        session_id, batch = self.session_id, self._outbox.take(COMMIT_LIMIT - len(claims))
        commands: list[c.Command] = [command for ending in batch for command in ending.commands]
        commands += claims
        unsettled = batch
        try:
            replies = await self._actor.commit(commands)
            unsettled = self._settle(batch, replies)
        except StoreError as error:
            replies = [Reply(refusal=error)] * len(commands)
        finally:  # endings that were not stored are handed in again, unless their session is gone
            self._outbox.put_back(batch, unsettled if session_id == self.session_id else ())
        refusal = replies[-1].refusal
        if not isinstance(refusal, StoreError):
            return replies[len(replies) - len(claims) :]
        log.warning("worker %s: %s (%s)", self.name, refusal.message, refusal.code)
        self._source.may_have_work = True
        await self._runtime.sleep(PAUSE_SECONDS)
        return None

    def _settle(self, batch: list[EndedTurn], replies: Sequence[Reply]) -> list[EndedTurn]:
        """Act on what the store has taken; return the endings to hand in again."""
        unsettled: list[EndedTurn] = []
        attempts: list[str] = []
        for ending, answered in answered_endings(batch, replies):
            if any(isinstance(reply.refusal, StoreError) for _, reply in answered):
                unsettled.append(ending)
                continue
            attempts.append(ending.attempt_id)
            self.refused += sum(log_refusal(command, reply.refusal) for command, reply in answered)
            if isinstance(ending.commands[-1], c.Suspend):
                self.watchdog.look_at_waits()  # its waits may be over before the next tick
                self._runtime.spawn(self._follow_suspension(answered), "endwell-deliver")
        if attempts:
            self._source.on_settled(attempts)
        return unsettled

    async def _follow_suspension(self, answered: Answered) -> None:
        """Deliver answers that came before the turn was suspended. If that fails, a watchdog does it."""
        try:
            commands = await commands_after_suspension(self._actor, answered)
            if commands:
                await self._actor.commit(commands)
        except StoreError as error:
            log.warning("answers for suspended turns must wait: %s", error.message)

    def on_turn_end(self, end: TurnEnd) -> None:
        """Queue the final commands of a turn; an attempt that lost its task has none."""
        match end:
            case EndedTurn():
                self._outbox.add(end)
            case LostTurn(attempt_id):
                self._source.on_settled((attempt_id,))
        self._source.on_room()
        self._wake.set()

    def on_doorbell(self, topics: frozenset[str]) -> None:
        """Look at once for what was rung for: work, or an attempt that may have lost its task."""
        namespace = self._actor.namespace
        if is_rung(f"held:{namespace}:{self.session_id}", topics):
            self._session.beat_now()
        is_work = any(is_rung(f"work:{namespace}:{agent}", topics) for agent in self.agents)
        if is_work and self._source.on_ring():
            self._wake.set()

    def on_probe_result(self, result: ProbeResult) -> None:
        self._source.on_probe_result(result)
        self._wake.set()

    def held_work(self) -> HeldWork:
        """The work that is held, until its ending is stored. The heartbeat's thread calls this."""
        attempts = (*self._turns.held_attempts(), *self._outbox.held_attempts())
        return HeldWork(attempts, tuple(self._claims), self._turns.running_steps(), self.watchdog.tick_age)

    def on_stale(self, attempts: tuple[str, ...]) -> None:
        """Stop turns whose attempts have lost their tasks."""
        for attempt in attempts:
            self._turns.abandon(attempt)
        self._source.on_settled(attempts)

    def on_session_lost(self) -> None:
        """Stop everything; endings that were not handed in are dropped."""
        self._turns.abandon_all()
        self._outbox.clear()
        self._source.on_session_lost()

    @property
    def _may_claim(self) -> bool:
        return self._free_slots > 0 and self._session.is_good

    async def _wait_for_work(self) -> None:
        """Rest until a ring, an ending, the next start of a task, or the next look at the store."""
        self._runtime.give_way()
        start = math.inf
        if self._may_claim and not self._claims:
            start = await self._source.seconds_to_start()
        if self._outbox or self._stopping or (self._may_claim and self._source.is_ready):
            return
        self._wake.clear()
        look = self._source.seconds_to_look
        is_woken = await self._runtime.wait(self._wake, min(start, look))
        if not is_woken and start <= look:
            self._source.may_have_work = True
        elif not is_woken or self._source.seconds_to_look <= 0:
            await self._source.look_for_work(has_room=self._free_slots > 0)

    def stop(self) -> None:
        """Claim no more turns; `run` drains and returns."""
        self._stopping = True
        self._wake.set()

    async def _drain_turns(self) -> None:
        """Let turns finish within the limit; hand the rest back, which costs no retry."""
        deadline = self._runtime.clock.monotonic() + self._settings.drain_seconds
        while self._outbox or self._turns.live_turns():
            left = deadline - self._runtime.clock.monotonic()
            if left <= 0:
                break
            if not self._outbox:
                await self._runtime.wait(self._wake, left)
                self._wake.clear()
            await self._hand_in()
        for turn in self._turns.live_turns():
            self._outbox.add(EndedTurn(turn.task.id, turn.attempt_id, (hand_back(turn),)))
        self._turns.abandon_all()
        while self._outbox and await self._hand_in():
            pass

    async def _hand_in(self) -> bool:
        """Commit endings; False when there were none, or the store is away."""
        return bool(self._outbox) and await self._commit_batch() is not None

    async def close(self) -> None:
        """Stop the heartbeat and close the session, saying whether something is still at work here."""
        self._unsubscribe()
        await self._source.close()
        for agent in self.agents.values():
            if agent.outside is not None:
                await agent.outside.close()
        await self._session.close(self._turns.end_reason)
