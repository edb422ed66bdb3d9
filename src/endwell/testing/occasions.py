"""Occasions: the points of a history at which planned faults happen.

A fault waits for the next transaction, ring, command, entry or message that suits it, and acts then. What has
not found its occasion in time is forgotten.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from endwell.errors import EndwellError
from endwell.model import commands as c
from endwell.pmo.relay.messages import Outgoing
from endwell.runtime.clock import MICROSECONDS
from endwell.testing.cluster import Cluster, ClusterMember
from endwell.testing.effect_sink import Fates
from endwell.testing.oracle.judging import Violation
from endwell.testing.receiver import Manner
from endwell.testing.redis.server import CommandFate, RedisCommands
from endwell.testing.store_tap import Moment

T = TypeVar("T")

Matches = Callable[[ClusterMember, Sequence[c.Command]], bool]
ActOnCommit = Callable[[ClusterMember, Sequence[c.Command]], None]
RingFate = Callable[[list[float]], list[float]]
"""Takes the delays after which a ring would arrive, returns those after which it does."""
ActOnEffect = Callable[[ClusterMember, str], None]
ActOnCommands = Callable[[ClusterMember, RedisCommands], CommandFate | None]
"""Returns what becomes of these Redis commands of a process; None if they do not suit."""
ActOnAnswers = Callable[[ClusterMember, RedisCommands, list[Any]], bool]
"""Receives Redis commands that took place, and their answers; returns whether they suit."""
ActOnEntry = Callable[[bytes, list[bytes]], bool | None]
"""Receives a new stream entry; returns whether it arrives, or None if it does not suit."""
ArmedMoment = Literal["begin", "commit", "committed", "read"]
REFUSED: Final = "What is stale, or contradicts an answer that was given, is refused."
Point = Literal[
    "ring", "commands", "answers", "entry", "batch", "delivered", "step", "effect", "effect_error", "tool"
]


@dataclass
class ArmedFault:
    """A fault that waits for a transaction."""

    moment: ArmedMoment
    matches: Matches
    act: ActOnCommit
    times: int
    until_us: float


@dataclass
class PendingFault:
    """A fault that waits at a point. `act` returns None if this occasion does not suit it."""

    act: Callable[..., Any]
    times: int
    until_us: float


class Occasions:
    """The faults that wait. A fault counts when it calls `happened`, not when it was planned."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.counted: Counter[str] = Counter()
        self.complaints: list[Violation] = []
        self.is_calm = False
        self.overheard: deque[c.AttemptCommand] = deque(maxlen=300)
        self.last_beats: dict[str, c.Heartbeat] = {}
        self.entries: deque[tuple[bytes, list[bytes]]] = deque(maxlen=100)
        self.before_change: deque[ActOnEffect] = deque()
        self.after_change: deque[ActOnEffect] = deque()
        self._armed: list[ArmedFault] = []
        self._pending: defaultdict[Point, list[PendingFault]] = defaultdict(list)
        cluster.network.fate = self._fate_of_ring
        cluster.redis.fate = self._fate_of_commands
        cluster.redis.on_executed = self._commands_done
        cluster.redis.server.accepts = self._accepts_entry
        cluster.receiver.manner = self._manner_of_receiver
        cluster.receiver.on_batch = lambda owner: self.meet("delivered", owner)

    @property
    def elapsed_us(self) -> int:
        """Virtual time since the history began."""
        return self.cluster.scheduler.elapsed_us

    def happened(self, name: str, who: str, about: str = "") -> None:
        """Count a fault that has taken place."""
        self.counted[name] += 1
        self.cluster.note(who, f"! {name}", about)

    def complain(self, name: str, problem: str) -> None:
        """Report that the product accepted a request that it had to refuse."""
        self.complaints.append(Violation(name, REFUSED, problem))

    def note_refusal(self, what: str, error: EndwellError) -> None:
        """Write a refusal that a person received into the trace."""
        self.cluster.note("people", "hear no", f"{what} {error.code}")

    def once(self, when: Callable[[], bool], *, every: float = 2.0, within: float = 600.0) -> None:
        """Call `when` again and again until it returns True."""
        until = self._until(within)

        def try_again() -> None:
            if not self.is_calm and not when() and self.elapsed_us < until:
                self.cluster.scheduler.run_after(every, try_again)

        try_again()

    def arm(
        self,
        moment: ArmedMoment,
        matches: Matches,
        act: ActOnCommit,
        *,
        times: int = 1,
        within: float = 600.0,
    ) -> None:
        """Act on the next transactions that match. `act` may raise what the database would raise."""
        self._armed.append(ArmedFault(moment, matches, act, times, self._until(within)))

    def spoil_rings(self, name: str, times: int, fate: RingFate, *, within: float = 600.0) -> None:
        """Change when the next rings between processes arrive."""
        noted: list[bool] = []

        def act(usual: list[float], ringer: str, listener: str) -> list[float]:
            if not noted:
                noted.append(True)
                self.happened(name, ringer, f"to {listener}")
            return fate(usual)

        self._wait_at("ring", act, times, within)

    def spoil_lines(self, act: ActOnCommands, *, times: int = 1, within: float = 600.0) -> None:
        """Change what becomes of the next commands to the Redis server."""
        self._wait_at("commands", act, times, within)

    def after_commands(self, act: ActOnAnswers, *, times: int = 1, within: float = 600.0) -> None:
        """Act when Redis commands have taken place, before their process receives the answers."""
        self._wait_at("answers", lambda *given: act(*given) or None, times, within)

    def spoil_entries(self, act: ActOnEntry, *, times: int = 1, within: float = 600.0) -> None:
        """Decide whether the next new stream entries arrive."""
        self._wait_at("entry", act, times, within)

    def spoil_receiver(
        self, manner: Callable[[str], Manner], *, times: int = 1, within: float = 600.0
    ) -> None:
        """Change how the receiver takes the next batches of the relay."""
        self._wait_at("batch", manner, times, within)

    def after_delivery(self, act: Callable[[str], None], *, within: float = 600.0) -> None:
        """Act when the relay of a process has delivered a batch, before its cursor moves."""

        def act_once(owner: str) -> bool:
            act(owner)
            return True

        self._wait_at("delivered", act_once, 1, within)

    def spoil(self, point: Point, name: str, seconds: float = 0.0) -> None:
        """Give the next step, effect or tool call this fault."""
        self._wait_at(point, lambda: (name, seconds), 1, math.inf)

    def overhear(self, commands: Sequence[c.Command]) -> None:
        """Keep commands that were committed, so that a fault can send them again."""
        for command in commands:
            if isinstance(command, c.AttemptCommand):
                self.overheard.append(command)
            elif isinstance(command, c.Heartbeat):
                self.last_beats[command.session_id] = command

    def act_on(self, member: ClusterMember, moment: Moment, commands: Sequence[c.Command]) -> None:
        """Let the first armed fault that suits act on a transaction; it may raise."""
        self._armed = [one for one in self._armed if one.times > 0 and one.until_us >= self.elapsed_us]
        for armed in self._armed:
            if armed.moment == moment and armed.matches(member, commands):
                armed.times -= 1
                armed.act(member, commands)
                return

    def meet(self, point: Point, *given: Any) -> Any:
        """Let the first fault that suits act at this point; return its answer, or None."""
        pending = self._pending[point]
        if pending:
            pending[:] = [one for one in pending if one.times > 0 and one.until_us > self.elapsed_us]
        for one in pending:
            answer = one.act(*given)
            if answer is not None:
                one.times -= 1
                return answer
        return None

    def forget_faults(self) -> None:
        """Forget every fault that has not happened: from now on none does."""
        self.is_calm = True
        self._armed.clear()
        self._pending.clear()
        self.cluster.redis.is_away = False
        self.before_change.clear()
        self.after_change.clear()

    def _wait_at(self, point: Point, act: Callable[..., Any], times: int, within: float) -> None:
        self._pending[point].append(PendingFault(act, times, self._until(within)))

    def _until(self, seconds: float) -> float:
        return math.inf if seconds == math.inf else self.elapsed_us + round(seconds * MICROSECONDS)

    def _fate_of_ring(self, ringer: str, listener: str, topics: frozenset[str]) -> list[float]:
        usual = self.cluster.network.arrives(ringer, listener, topics)
        return _or_else(self.meet("ring", usual, ringer, listener), usual)

    def _fate_of_commands(self, owner: str, commands: RedisCommands) -> CommandFate:
        return _or_else(self.meet("commands", self.cluster.members[owner], commands), "")

    def _commands_done(self, owner: str, commands: RedisCommands, answers: list[Any]) -> None:
        self.meet("answers", self.cluster.members[owner], commands, answers)

    def _accepts_entry(self, key: bytes, fields: list[bytes]) -> bool:
        self.entries.append((key, fields))
        return _or_else(self.meet("entry", key, fields), True)

    def _manner_of_receiver(self, owner: str, messages: Sequence[Outgoing]) -> Manner:
        return _or_else(self.meet("batch", owner), "")


def _or_else(answer: Any, usual: T) -> T:
    return usual if answer is None else answer


class PlannedFates(Fates):
    """What the plan has in store for the functions of steps and effects."""

    def __init__(self, occasions: Occasions) -> None:
        self._occasions = occasions

    def step_seconds(self) -> float:
        fate = self._occasions.meet("step")
        if fate is None:
            return 0.0
        name, seconds = fate
        self._occasions.happened(name, "agent", f"{seconds:.0f} s")
        if not seconds:
            raise OSError("the step broke")
        return float(seconds)

    def effect_seconds(self, key: str) -> float:
        fate = self._occasions.meet("effect")
        if fate is None:
            return 0.0
        name, seconds = fate
        self._occasions.happened(name, "outside", f"{key} {seconds:.0f} s")
        return float(seconds)

    def before_change(self, pid: int, key: str) -> None:
        self._act(self._occasions.before_change, pid, key)

    def after_change(self, pid: int, key: str) -> None:
        self._act(self._occasions.after_change, pid, key)
        fate = self._occasions.meet("effect_error")
        if fate is not None:
            self._occasions.happened(fate[0], "outside", key)
            raise OSError("the connection broke")

    def _act(self, acts: deque[ActOnEffect], pid: int, key: str) -> None:
        members = self._occasions.cluster.members.values()
        member = next((one for one in members if one.process.pid == pid), None)
        if acts and member is not None:
            acts.popleft()(member, key)
