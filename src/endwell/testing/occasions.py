"""Occasions: the points of a history at which planned faults happen.

A fault waits at a point for an occasion that suits it: a transaction, a ring, a Redis command, a message. It
is forgotten if none comes in time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from endwell.errors import EndwellError
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.cluster import Cluster, ClusterMember
from endwell.testing.effect_sink import Fates
from endwell.testing.oracle.judging import Violation

T = TypeVar("T")

Act = Callable[..., Any]
"""Called with what happens at a point; returns None if that does not suit the fault."""
RingFate = Callable[[list[float]], list[float]]
"""Takes the delays after which a ring would arrive, returns those after which it does."""
TransactionPoint = Literal["begin", "commit", "committed", "read"]
"""Act on a member and its commands; may raise what the database would raise."""
Point = (
    TransactionPoint
    | Literal[
        "ring",  # delays, ringer, listener: returns other delays
        "commands",  # member, Redis commands: returns what becomes of them
        "answers",  # member, Redis commands that took place, their answers
        "entry",  # key and fields of a new stream entry: returns whether it arrives
        "batch",  # owner of a relay that sends: returns how the receiver takes the batch
        "delivered",  # owner of a relay whose batch was taken
        "before_change",  # member, effect key: the outside world is about to change
        "after_change",
        "step",  # a step's function begins
        "effect",  # an effect's function begins
        "effect_error",  # an effect's function has changed the world
        "tool",  # a person is about to answer a tool call
    ]
)
REFUSED: Final = "What is stale, or contradicts an answer that was given, is refused."


@dataclass
class PendingFault:
    """A fault that waits at a point."""

    act: Act
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
        self._pending: defaultdict[Point, list[PendingFault]] = defaultdict(list)
        members, network = cluster.members, cluster.network
        network.fate = lambda *ring: self._fate_of_ring(network.usual_delays(*ring), *ring)
        cluster.redis.fate = lambda owner, commands: self.reach("commands", members[owner], commands) or ""
        cluster.redis.on_executed = lambda owner, *done: self.reach("answers", members[owner], *done)
        cluster.redis.server.accepts = self._accepts_entry
        cluster.receiver.manner = lambda owner, messages: self.reach("batch", owner) or ""
        cluster.receiver.on_batch = lambda owner: self.reach("delivered", owner)

    @property
    def elapsed_us(self) -> int:
        """Virtual time since the history began."""
        return self.cluster.scheduler.elapsed_us

    def count_fault(self, name: str, who: str, about: str = "") -> None:
        """Count a fault that has taken place."""
        self.counted[name] += 1
        self.cluster.add_to_trace(who, f"! {name}", about)

    def report_violation(self, name: str, problem: str) -> None:
        """Report that the product accepted a request that it had to refuse."""
        self.complaints.append(Violation(name, REFUSED, problem))

    def note_refusal(self, what: str, error: EndwellError) -> None:
        """Write a refusal that a person received into the trace."""
        self.cluster.add_to_trace("people", "hear no", f"{what} {error.code}")

    def retry_until(self, when: Callable[[], bool], *, every: float = 2.0, within: float = 600.0) -> None:
        """Call `when` again and again until it returns True."""
        until = self.elapsed_us + round(within * SECOND)

        def try_again() -> None:
            if not self.is_calm and not when() and self.elapsed_us < until:
                self.cluster.scheduler.run_after(every, try_again)

        try_again()

    def act_when_found(
        self,
        dice: Dice,
        find: Callable[[], Sequence[T]],
        act: Callable[[T], None],
        *,
        every: float = 2.0,
        within: float = 600.0,
    ) -> None:
        """Act on one of the things that `find` returns, as soon as it returns any."""

        def act_if_any() -> bool:
            found = find()
            if found:
                act(dice.choice(found))
            return bool(found)

        self.retry_until(act_if_any, every=every, within=within)

    def wait_at(self, point: Point, act: Act, *, times: int = 1, within: float = 600.0) -> None:
        """Let a fault act at its next occasions at this point."""
        until = math.inf if within == math.inf else self.elapsed_us + round(within * SECOND)
        self._pending[point].append(PendingFault(act, times, until))

    def spoil_next(self, point: Point, name: str, seconds: float = 0.0) -> None:
        """Give the next step, effect or tool call this fault."""
        self.wait_at(point, lambda: (name, seconds), within=math.inf)

    def spoil_rings(self, name: str, times: int, fate: RingFate, *, within: float = 600.0) -> None:
        """Change when the next rings between processes arrive."""
        noted: list[bool] = []

        def act(usual: list[float], ringer: str, listener: str) -> list[float]:
            if not noted:
                noted.append(True)
                self.count_fault(name, ringer, f"to {listener}")
            return fate(usual)

        self.wait_at("ring", act, times=times, within=within)

    def reach(self, point: Point, *given: Any) -> Any:
        """Let the first fault that this occasion suits act; return its answer, or None."""
        pending = self._pending[point]
        if pending:
            pending[:] = [one for one in pending if one.times > 0 and one.until_us > self.elapsed_us]
        for one in list(pending):
            one.times -= 1  # before it acts: it may raise
            answer = one.act(*given)
            if answer is not None:
                return answer
            one.times += 1
        return None

    def keep_commands(self, commands: Sequence[c.Command]) -> None:
        """Keep commands that were committed, so that a fault can send them again."""
        for command in commands:
            if isinstance(command, c.AttemptCommand):
                self.overheard.append(command)
            elif isinstance(command, c.Heartbeat):
                self.last_beats[command.session_id] = command

    def forget_faults(self) -> None:
        """Forget every fault that has not happened: from now on none does."""
        self.is_calm = True
        self._pending.clear()
        self.cluster.redis.is_away = False

    def member_with(self, pid: int) -> ClusterMember | None:
        """Find the current process with this number."""
        members = self.cluster.members.values()
        return next((one for one in members if one.process.pid == pid), None)

    def _fate_of_ring(
        self, usual: list[float], ringer: str, listener: str, topics: frozenset[str]
    ) -> list[float]:
        found = self.reach("ring", usual, ringer, listener)
        return usual if found is None else list(found)

    def _accepts_entry(self, key: bytes, fields: list[bytes]) -> bool:
        self.entries.append((key, fields))
        return self.reach("entry", key, fields) is not False


class PlannedFates(Fates):
    """The planned faults inside the functions of steps and effects."""

    def __init__(self, occasions: Occasions) -> None:
        self._occasions = occasions

    def step_seconds(self) -> float:
        name, seconds = self._occasions.reach("step") or ("", 0.0)
        if name:
            self._occasions.count_fault(name, "agent", f"{seconds:.0f} s")
        if name and not seconds:
            raise OSError("the step broke")
        return float(seconds)

    def effect_seconds(self, key: str) -> float:
        name, seconds = self._occasions.reach("effect") or ("", 0.0)
        if name:
            self._occasions.count_fault(name, "outside", f"{key} {seconds:.0f} s")
        return float(seconds)

    def before_change(self, pid: int, key: str) -> None:
        self._meet_change("before_change", pid, key)

    def after_change(self, pid: int, key: str) -> None:
        self._meet_change("after_change", pid, key)
        name, _ = self._occasions.reach("effect_error") or ("", 0.0)
        if name:
            self._occasions.count_fault(name, "outside", key)
            raise OSError("the connection broke")

    def _meet_change(self, point: Literal["before_change", "after_change"], pid: int, key: str) -> None:
        member = self._occasions.member_with(pid)
        if member is not None:
            self._occasions.reach(point, member, key)
