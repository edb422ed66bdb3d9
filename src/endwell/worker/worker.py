"""The worker: one loop that hands in what has ended and takes what is ready, in one commit each way round.

Under load hundreds of results and claims share a transaction; when idle a doorbell wakes the loop, and
polling finds what a lost ring did not announce.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from endwell.doorbell.contract import Doorbell, is_rung
from endwell.errors import EndwellError, NotFound, StaleAttempt, StoreError
from endwell.model import commands as c
from endwell.policy.guard import is_suspect
from endwell.policy.limits import SECOND, Limits
from endwell.runtime.base import Runtime
from endwell.runtime.processes import host_name, process_id
from endwell.settings import Settings
from endwell.store.contract import Store
from endwell.store.rows import Offer, Reply
from endwell.worker.agents import Agent
from endwell.worker.heart import Heart
from endwell.worker.turns import Turn, Turns

log = logging.getLogger(__name__)

CLAIM_LIMIT = 128
"""Most tasks taken in one commit."""
STORE_PAUSE_SECONDS = 0.5
"""How long to wait before a store that failed is asked again."""


class Worker:
    """One session. `run()` works until `stop()`; tests call `run_once()`."""

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
        name: str | None = None,
        concurrency: int | None = None,
    ) -> None:
        self._store = store
        self._bell = bell
        self._runtime = runtime
        self._settings = settings.worker
        self._limits = limits
        self._namespace = namespace
        self._agents = dict(agents)
        self.concurrency = concurrency or settings.worker.concurrency
        self.name = name or f"{host_name()}-{process_id()}"
        self.session_id = ""
        self._turns = Turns(runtime, self._agents, self._commit_for_turn, self._note)
        self._heart: Heart
        self._outbox: list[c.Command] = []
        self._wake = asyncio.Event()
        self._may_be_work = True
        self._stopping = False
        self._next_start: int | None = None
        self.refused = 0

    async def start(self) -> None:
        """Register the agents, open a session and start its heartbeat."""
        specs = tuple(agent.spec() for agent in self._agents.values())
        await self._store.one(
            c.RegisterAgents(command_id=self._new_id(), namespace=self._namespace, agents=specs)
        )
        await self._open_session()
        self._unsubscribe = self._bell.subscribe(self._heard)

    async def _open_session(self) -> None:
        self.session_id = self._new_id()
        self._loop = asyncio.get_running_loop()
        await self._store.one(
            c.OpenSession(
                command_id=self._new_id(),
                namespace=self._namespace,
                actor=self.name,
                session_id=self.session_id,
                kind="worker",
                name=self.name,
                host=host_name(),
                pid=process_id(),
                agents=tuple(self._agents),
                concurrency=self.concurrency,
                lease=int(self._settings.lease_seconds * SECOND),
            )
        )
        self._heart = self._new_heart(self.session_id)
        self._heart.start()

    def _new_heart(self, session_id: str) -> Heart:
        call = self._loop.call_soon_threadsafe
        return Heart(
            self._store,
            self._runtime,
            namespace=self._namespace,
            session_id=session_id,
            lease_seconds=self._settings.lease_seconds,
            interval_seconds=self._settings.heartbeat_seconds,
            held=self._turns.held,
            on_stale=lambda attempts: _harmlessly(call, self._let_go, attempts),
            on_lost=lambda why: _harmlessly(call, self._lost, session_id, why),
        )

    async def run(self) -> None:
        """Work until told to stop, then drain."""
        while not self._stopping:
            if not await self.run_once():
                await self._rest()
        await self._drain()

    async def run_once(self) -> bool:
        """Hand in what has ended and take what is ready. False when there was nothing to do."""
        await self._runtime.sleep(0)  # let turns that are about to end, end: one commit for all of them
        handed_in, self._outbox = self._outbox, []
        claim = self._claim()
        commands = [*handed_in, claim] if claim else handed_in
        if not commands:
            return False
        try:
            replies = await self._store.commit(commands)
        except StoreError as error:
            await self._keep_for_later(handed_in, error)
            return False
        self._settle(handed_in, replies)
        return self._take(claim, replies[-1]) if claim else True

    async def _keep_for_later(self, handed_in: Sequence[c.Command], error: StoreError) -> None:
        """The store is away: nothing that has ended is forgotten, and nothing new is claimed meanwhile."""
        log.warning("worker %s: %s (%s)", self.name, error.message, error.code)
        self._outbox[:0] = handed_in
        await self._runtime.sleep(STORE_PAUSE_SECONDS)

    def _claim(self) -> c.ClaimNext | None:
        free = min(self.concurrency - self._turns.count, CLAIM_LIMIT)
        if self._stopping or not self._may_be_work or free <= 0 or not self._heart.is_good:
            return None
        has_suspect = any(is_suspect(t.task.crash_count, self._limits.crash_limit) for t in self._turns.all())
        return c.ClaimNext(
            command_id=self._new_id(),
            namespace=self._namespace,
            actor=self.name,
            session_id=self.session_id,
            agents=tuple(self._agents),
            limit=free,
            may_take_suspect=not has_suspect,
        )

    def _settle(self, commands: Sequence[c.Command], replies: Sequence[Reply]) -> None:
        for command, reply in zip(commands, replies, strict=False):
            if isinstance(reply.refusal, StaleAttempt):
                self.refused += 1
                log.warning("refused as stale: %s", reply.refusal.message)
            elif reply.refusal is not None:
                log.error("%s was refused: %s", type(command).__name__, reply.refusal.message)

    def _take(self, claim: c.ClaimNext, reply: Reply) -> bool:
        if isinstance(reply.refusal, NotFound):
            self._lost(claim.session_id, reply.refusal.message)
            return True
        self._may_be_work = len(reply.taken) == claim.limit
        for offer in reply.taken:
            self._begin(offer)
        return bool(reply.taken)

    def _begin(self, offer: Offer) -> None:
        self._turns.begin(offer, self.name)

    def _note(self, ending: c.Command | None) -> None:
        """A turn is over; `None` when it was taken from us and there is nothing to say."""
        if ending is not None:
            self._outbox.append(ending)
        self._wake.set()

    async def _commit_for_turn(self, command: c.Command) -> None:
        await self._store.one(command)

    def _heard(self, topics: frozenset[str]) -> None:
        if is_rung(f"held:{self._namespace}:{self.session_id}", topics):
            self._heart.beat_now()
        if any(is_rung(f"work:{self._namespace}:{agent}", topics) for agent in self._agents):
            self._may_be_work = True
            self._wake.set()

    async def _rest(self) -> None:
        """Until a ring, an ending, the next start time, or the poll interval."""
        if self._outbox:
            return
        rung = await self._runtime.wait(self._wake, await self._rest_seconds())
        self._wake.clear()
        if not rung:
            self._may_be_work = True

    async def _rest_seconds(self) -> float:
        seconds = self._settings.poll_seconds
        if self._turns.count >= self.concurrency:
            return seconds
        try:
            now = await self._store.now()
            start = await self._store.next_start(self._namespace, tuple(self._agents), now)
        except StoreError:
            return seconds
        return seconds if start is None else min(seconds, max(0.0, (start - now) / SECOND))

    def _let_go(self, attempts: tuple[str, ...]) -> None:
        """These attempts are no longer ours: stop them, say nothing more about them."""
        for attempt in attempts:
            self._turns.abandon(attempt)

    def _lost(self, session_id: str, why: str) -> None:
        """The lease is gone, and with it everything held under it. Start over as a new session."""
        if session_id != self.session_id or self._stopping:
            return
        log.error("worker %s lost session %s: %s", self.name, session_id, why)
        self.session_id = ""
        self._turns.abandon_all()
        self._outbox.clear()
        self._runtime.spawn(self._start_over(self._heart), "endwell-worker-start-over")

    async def _start_over(self, old: Heart) -> None:
        await old.stop()
        while not self._stopping:
            try:
                await self._open_session()
                return
            except (StoreError, EndwellError) as error:
                log.warning("worker %s cannot open a session yet: %s", self.name, error)
                await self._runtime.sleep(STORE_PAUSE_SECONDS)

    def stop(self) -> None:
        """No new claims; `run` drains and returns."""
        self._stopping = True
        self._wake.set()

    async def _drain(self) -> None:
        """Finish what runs, within the limit; hand the rest back, which costs the tasks nothing."""
        deadline = self._runtime.clock.monotonic() + self._settings.drain_seconds
        while self._turns.count and (left := deadline - self._runtime.clock.monotonic()) > 0:
            await self._runtime.wait(self._wake, left)
            self._wake.clear()
            await self._hand_in()
        self._outbox += [self._hand_back(turn) for turn in self._turns.all()]
        self._turns.abandon_all()
        await self._hand_in()

    def _hand_back(self, turn: Turn) -> c.HandBack:
        return c.HandBack(
            command_id=self._new_id(),
            namespace=self._namespace,
            actor=self.name,
            task_id=turn.task.id,
            attempt_id=turn.attempt_id,
        )

    async def _hand_in(self) -> None:
        handed_in, self._outbox = self._outbox, []
        if handed_in:
            self._settle(handed_in, await self._store.commit(handed_in))

    async def close(self) -> None:
        """Say goodbye: no more beats, and the session ends now rather than by its lease."""
        self._unsubscribe()
        await self._heart.stop()
        if self.session_id:
            goodbye = c.CloseSession(
                command_id=self._new_id(),
                namespace=self._namespace,
                actor=self.name,
                session_id=self.session_id,
            )
            await self._store.commit((goodbye,))

    def _new_id(self) -> str:
        return self._runtime.ids.new()


def _harmlessly(call: object, *arguments: object) -> None:
    """Hand something to the worker's loop, which may have closed meanwhile."""
    try:
        call(*arguments)  # type: ignore[operator]
    except RuntimeError:
        log.debug("the worker's loop is closed")
