"""Where a worker's turns come from. `StoreSource`: the worker claims them from the store by itself.

`StreamSource` (`stream_source.py`) differs while a stream brings the turns; the worker's loop is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from endwell.doorbell.contract import Doorbell
from endwell.errors import NotFound, StoreError
from endwell.model import commands as c
from endwell.store.actor import Actor
from endwell.store.probe import ProbeResult
from endwell.store.rows import Offer, Reply
from endwell.streams.entries import Delivery
from endwell.turn.agents import Agent
from endwell.worker.session import WorkerSession
from endwell.worker.versions import OtherVersions
from endwell.worker.watchdog import WorkerWatchdog
from endwell.worker.work_probe import WorkProbe


class Capacity(NamedTuple):
    """What one commit may claim."""

    session_id: str
    turns: int
    commands: int
    """Places left in the commit after the endings."""
    may_take_suspect: bool
    is_shared: bool
    """Whether another loop of this worker claims from the same backlog at the same time."""


class PendingClaim(NamedTuple):
    """A claim without its answer; `limit` slots are taken until it comes."""

    id: str
    capacity: Capacity
    limit: int
    deliveries: tuple[Delivery, ...] = ()


class StoreSource:
    """A claim asks for any ready turns; the doorbell, the watchdog and a probe say when it is worthwhile."""

    def __init__(
        self,
        actor: Actor,
        agents: Mapping[str, Agent],
        session: WorkerSession,
        probe: WorkProbe,
        watchdog: WorkerWatchdog,
        bell: Doorbell,
    ) -> None:
        self._actor = actor
        self._agents = tuple(agents)
        self._versions = {name: agent.version for name, agent in agents.items() if agent.version}
        self._others = OtherVersions(actor.store, actor.namespace, agents)
        self._session = session
        self._probe = probe
        self._watchdog = watchdog
        self._bell = bell
        self.may_have_work = True
        """Whether a claim is worth its transaction."""
        self.was_full = False
        """Whether the last claim got as many turns as it asked for."""

    async def start(self, *, room: Callable[[], int], wake: Callable[[], None]) -> None:
        """Begin. `room` says how many more turns may begin; `wake` ends the worker's rest."""

    async def stop(self) -> None:
        """Bring nothing more; what was brought and not claimed goes back."""

    async def close(self) -> None:
        """Let go of connections."""

    def begin_claim(self, capacity: Capacity) -> PendingClaim | None:
        """Decide what to claim; None when there is nothing."""
        if not self.may_have_work or capacity.turns <= 0:
            return None
        self.may_have_work = capacity.is_shared  # a ring from now on announces something new
        self._probe.on_claim()
        return PendingClaim(self._actor.new_id(), capacity, capacity.turns)

    async def claim_commands(self, claim: PendingClaim) -> Sequence[c.Command]:
        """The commands that ask the store for the turns of a claim."""
        others = await self._others.served_elsewhere()
        command = self._actor.command(
            c.ClaimNext,
            command_id=claim.id,
            session_id=claim.capacity.session_id,
            agents=self._agents,
            limit=claim.limit,
            may_take_suspect=claim.capacity.may_take_suspect,
            versions=self._versions,
            served_elsewhere=others,
            passed_over=self._others.passed_over if others else 0,
        )
        return (command,)

    async def on_answer(self, claim: PendingClaim, replies: Sequence[Reply]) -> Sequence[Offer]:
        """The turns that the store granted; none if the session was lost while it was asked."""
        (reply,) = replies
        if isinstance(reply.refusal, NotFound):
            self._session.lose(claim.capacity.session_id, reply.refusal.message)
        if claim.capacity.session_id != self._session.id:
            return ()
        self.was_full = len(reply.taken) == claim.limit
        self.may_have_work |= self.was_full or self._others.has_passed_more(reply.passed_over)
        return reply.taken

    def on_no_answer(self, claim: PendingClaim) -> None:
        """The store is away: claim again later."""

    def on_settled(self, attempts: Collection[str]) -> None:
        """The store has the endings of these attempts, or they have lost their tasks."""

    def on_session_lost(self) -> None:
        """All attempts have lost their tasks."""
        self.may_have_work = True

    def on_room(self) -> None:
        """More turns may begin."""

    def on_ring(self) -> bool:
        """The doorbell announces work; whether the worker is to wake for it."""
        self.may_have_work = True
        return True

    def on_probe_result(self, result: ProbeResult) -> None:
        """The watchdog has looked for work as well."""
        self._on_look(self._probe.learn(result))

    def _on_look(self, has_work: bool) -> None:
        self.may_have_work = self.may_have_work or has_work

    @property
    def is_ready(self) -> bool:
        """Whether a claim may bring turns now."""
        return self.may_have_work

    async def seconds_to_start(self) -> float:
        """Seconds until a delayed task starts, which no ring announces; endless if a stream will bring it."""
        return await self._probe.seconds_to_next_start()

    @property
    def pace_seconds(self) -> float:
        """Seconds from one look at the store to the next."""
        return self._probe.pace_seconds(is_rung=self._bell.health().connected)

    @property
    def seconds_to_look(self) -> float:
        """Seconds until the next look at the store."""
        return self._probe.seconds_to_next_look(self.pace_seconds)

    async def look(self, *, has_room: bool) -> None:
        """Look for work that no ring has announced."""
        self._probe.postpone()
        if not has_room:
            self.may_have_work = True
        elif self._probe.is_free or not self._watchdog.hasten(self.pace_seconds):
            # A tick of the watchdog looks for the worker as well: one statement instead of two.
            try:
                self._on_look(await self._probe.look())
            except StoreError:
                self.may_have_work = True  # the claim will say what is wrong
