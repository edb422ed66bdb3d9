"""Where a worker's turns come from. `StoreSource`: the worker claims them from the store by itself.

A claim is a transaction; a probe is one statement, or none where the store knows that nothing has changed.
The worker looks once per interval, whether or not the doorbell rings, because a ring may be lost: that costs
at most the interval. `StreamSource` (`stream_source.py`) differs while a stream brings the turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from endwell.doorbell.contract import Doorbell
from endwell.errors import NotFound, StoreError
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.model.session import versions_of
from endwell.runtime.clock import Clock
from endwell.settings.sections import WorkerSettings as WorkerSettings
from endwell.store.actor import Actor
from endwell.store.contract import Store
from endwell.store.probe import NOW, CachedProbe, Probe, ProbeResult
from endwell.store.rows import Offer, Reply
from endwell.streams.entries import Delivery
from endwell.turn.agents import Agent
from endwell.worker.session import WorkerSession

MOST_PASSED_OVER: Final = 1000
"""Tasks of other versions that a claim looks past; behind more of them it waits for their workers."""


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


@dataclass(frozen=True, kw_only=True)
class SourceParts:
    """What a source works with. `tick_if_due` has the watchdog look instead, if its tick is due that soon."""

    actor: Actor
    agents: Mapping[str, Agent]
    session: WorkerSession
    bell: Doorbell
    clock: Clock
    settings: WorkerSettings
    tick_if_due: Callable[[float], bool]


class StoreSource:
    """A claim asks for any ready turns; doorbell, watchdog and probe say when it is worthwhile."""

    def __init__(self, parts: SourceParts) -> None:
        actor, agents = parts.actor, list(parts.agents)
        self._parts = parts
        self._actor = actor
        self._session = parts.session
        self._versions = {name: agent.version for name, agent in parts.agents.items() if agent.version}
        self._others = OtherVersions(actor.store, actor.namespace, parts.agents)
        self.questions = (
            Probe("offered_to_some", (actor.namespace, agents)),
            Probe("ready_for_some", (actor.namespace, agents, NOW)),
            Probe("next_start_of_some", (actor.namespace, agents, NOW), is_value=True),
        )
        self._probe = CachedProbe(actor.store, *self.questions, due="next_start_of_some")
        self._start_at = math.inf
        self._looked_at = 0.0
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

    # Claims

    def begin_claim(self, capacity: Capacity) -> PendingClaim | None:
        """Decide what to claim; None when there is nothing."""
        if not self.may_have_work or capacity.turns <= 0:
            return None
        self.may_have_work = capacity.is_shared  # a ring from now on announces something new
        self._postpone_look()
        self._probe.forget()  # a claim finds ready tasks, but does not say when the next one starts
        return PendingClaim(self._actor.new_id(), capacity, capacity.turns)

    async def claim_commands(self, claim: PendingClaim) -> Sequence[c.Command]:
        """The commands that ask the store for the turns of a claim."""
        others = await self._others.served_elsewhere()
        command = self._actor.command(
            c.ClaimNext,
            command_id=claim.id,
            session_id=claim.capacity.session_id,
            agents=tuple(self._parts.agents),
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
            self._session.lose_lease(claim.capacity.session_id, reply.refusal.message)
        if claim.capacity.session_id != self._session.id:
            return ()
        self.was_full = len(reply.taken) == claim.limit
        self.may_have_work |= self.was_full or self._others.has_passed_more(reply.passed_over)
        return reply.taken

    def on_no_answer(self, claim: PendingClaim) -> None:
        """The store is away: claim the same again later."""

    # What the worker learns

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
        """The watchdog has looked for work as well; its answers count unless newer ones are known."""
        known = self._probe.known
        if known is not None and result.now >= known.now:
            self._probe.adopt(result)
            self._learn_start(result)
        self._postpone_look()
        self._on_look(result)

    # Looking for work

    @property
    def is_ready(self) -> bool:
        """Whether a claim may bring turns now."""
        return self.may_have_work

    async def seconds_to_start(self) -> float:
        """Seconds until a delayed task starts, which no ring announces; endless if a stream will bring it."""
        try:
            if self._probe.known is None:
                await self._ask_probe()
        except StoreError:
            return self._parts.settings.poll_seconds
        return max(0.0, self._start_at - self._parts.clock.monotonic())

    @property
    def pace_seconds(self) -> float:
        """Seconds from one look to the next; the store's stamps make a look free."""
        is_rung = self._parts.bell.health().connected
        return self._parts.settings.pace_seconds(is_free=self._actor.store.has_stamps, is_rung=is_rung)

    @property
    def seconds_to_look(self) -> float:
        """Seconds until the next look at the store."""
        return max(0.0, self.pace_seconds - (self._parts.clock.monotonic() - self._looked_at))

    async def look_for_work(self, *, has_room: bool) -> None:
        """Look for work that no ring has announced."""
        self._postpone_look()  # by a whole interval, also if this look fails
        if not has_room:
            self.may_have_work = True
        elif self._actor.store.has_stamps or not self._parts.tick_if_due(self.pace_seconds):
            try:
                self._on_look(await self._ask_probe())
            except StoreError:
                self.may_have_work = True  # the claim will say what is wrong

    async def _ask_probe(self) -> ProbeResult:
        result = await self._probe.ask()
        self._learn_start(result)
        return result

    def _learn_start(self, result: ProbeResult) -> None:
        self._postpone_look()
        start = result["next_start_of_some"]
        self._start_at = math.inf if start is None else self._looked_at + (start - result.now) / SECOND

    def _postpone_look(self) -> None:
        self._looked_at = self._parts.clock.monotonic()

    def _on_look(self, result: ProbeResult) -> bool:
        """Whether there is work to claim."""
        has_work = result.has_any("offered_to_some", "ready_for_some")
        self.may_have_work = self.may_have_work or has_work
        return has_work


class OtherVersions:
    """The versions that other live workers serve, of agents that refuse to change version."""

    def __init__(self, store: Store, namespace: str, agents: Mapping[str, Agent]) -> None:
        self._store = store
        self._namespace = namespace
        self._own = {
            name: agent.version or "" for name, agent in agents.items() if agent.on_version_change == "refuse"
        }
        self.passed_over = 0
        """How many tasks of other versions the last claim found before ours."""

    def has_passed_more(self, passed_over: int) -> bool:
        """Whether a claim found more tasks of other versions before ours than it looked past."""
        before, self.passed_over = self.passed_over, min(passed_over, MOST_PASSED_OVER)
        return self.passed_over > before

    async def served_elsewhere(self) -> dict[str, tuple[str, ...]]:
        """The other versions by agent, asked for before each claim: tasks they have begun are theirs.

        A session whose lease lapsed counts until it is closed: after an outage of the store every lease has
        lapsed, and its worker may be back a moment later. Supervisors wait for it before they close sessions.
        """
        if not self._own:
            return {}
        found: dict[str, set[str]] = {}
        for session in await self._store.open_sessions(self._namespace):
            for agent, version in versions_of(session).items():
                if agent in self._own and version != self._own[agent]:
                    found.setdefault(agent, set()).add(version)
        return {agent: tuple(sorted(versions)) for agent, versions in found.items()}
