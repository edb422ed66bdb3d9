"""How faults find their occasions: the next transaction, the next ring, somebody who holds work, a moment."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from endwell.errors import EndwellError
from endwell.model import commands as c
from endwell.pmo.relay.messages import Outgoing
from endwell.runtime.clock import MICROSECONDS
from endwell.testing.cluster import Cluster, ClusterMember
from endwell.testing.effect_sink import Fates
from endwell.testing.faults.registry import FAULTS
from endwell.testing.oracle.judging import Violation
from endwell.testing.receiver import Manner
from endwell.testing.redis.client import Commands
from endwell.testing.redis.client import Fate as LineFate
from endwell.testing.store_tap import Moment

Matches = Callable[[ClusterMember, Sequence[c.Command]], bool]
Act = Callable[[ClusterMember, Sequence[c.Command]], None]
Fate = Callable[[list[float]], list[float]]
ByEffect = Callable[[ClusterMember, str], None]
OnLine = Callable[[ClusterMember, Commands], LineFate | None]
"""What becomes of these commands of a process; None if they are not meant."""
OnAnswer = Callable[[ClusterMember, Commands, list[Any]], bool]
"""Told of commands that took place, and of their answers; whether that was the occasion."""
OnEntry = Callable[[bytes, list[bytes]], bool | None]
"""Told of a new entry: whether it arrives; None if it is not meant."""
ArmedMoment = Literal["begin", "commit", "committed", "read"]


@dataclass
class Armed:
    """A fault that waits for a transaction."""

    moment: ArmedMoment
    matches: Matches
    act: Act
    times: int
    until_us: int


@dataclass
class SpoiledRings:
    """A fault that waits for rings."""

    name: str
    fate: Fate
    times: int
    until_us: int
    is_noted: bool = False


A = TypeVar("A")


@dataclass
class Lurking(Generic[A]):
    """A fault that waits at the server of streams, or at the receiver."""

    act: A
    times: int
    until_us: int


class Occasions:
    """What faults may wait for. A fault counts when `happened` is told, not when it was planned."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.counted: Counter[str] = Counter()
        self.complaints: list[Violation] = []
        self.is_calm = False
        self.overheard: deque[c.AttemptCommand] = deque(maxlen=300)
        self.last_beats: dict[str, c.Heartbeat] = {}
        self.before_change: deque[ByEffect] = deque()
        self.after_change: deque[ByEffect] = deque()
        self.step_fates: deque[tuple[str, float]] = deque()
        self.effect_fates: deque[tuple[str, float]] = deque()
        self.tool_fates: deque[str] = deque()
        self._armed: list[Armed] = []
        self._rings: list[SpoiledRings] = []
        self.entries: deque[tuple[bytes, list[bytes]]] = deque(maxlen=100)
        self._lines: list[Lurking[OnLine]] = []
        self._answers: list[Lurking[OnAnswer]] = []
        self._new_entries: list[Lurking[OnEntry]] = []
        self._manners: list[Lurking[Callable[[str], Manner]]] = []
        self._tellings: list[Lurking[Callable[[str], bool]]] = []
        cluster.network.fate = self._fate_of_ring
        cluster.redis.fate = self._fate_of_commands
        cluster.redis.done = self._commands_done
        cluster.redis.server.accepts = self._accepts
        cluster.receiver.manner = self._manner_of_receiver
        cluster.receiver.after_told = self._was_told

    @property
    def elapsed_us(self) -> int:
        """How long the scheduler has existed."""
        return self.cluster.scheduler.elapsed_us

    def happened(self, name: str, who: str, about: str = "") -> None:
        """A fault really took place."""
        self.counted[name] += 1
        self.cluster.note(who, f"! {name}", about)

    def complain(self, name: str, problem: str) -> None:
        """Something was accepted that had to be refused."""
        says = FAULTS[name].says if name in FAULTS else "What people are told is true."
        self.complaints.append(Violation(name, says, problem))

    def note_refusal(self, what: str, error: EndwellError) -> None:
        """Somebody heard no; that is for the trace."""
        self.cluster.note("people", "hear no", f"{what} {error.code}")

    def once(self, when: Callable[[], bool], *, every: float = 2.0, within: float = 600.0) -> None:
        """Ask again and again until the occasion is there."""
        until = self._in(within)

        def look() -> None:
            if not self.is_calm and not when() and self.elapsed_us < until:
                self.cluster.scheduler.run_after(every, look)

        look()

    def arm(
        self, moment: ArmedMoment, matches: Matches, act: Act, *, times: int = 1, within: float = 600.0
    ) -> None:
        """Act on the next transactions that match."""
        self._armed.append(Armed(moment, matches, act, times, self._in(within)))

    def spoil_rings(self, name: str, times: int, fate: Fate, *, within: float = 600.0) -> None:
        """Give the next rings between processes another fate."""
        self._rings.append(SpoiledRings(name, fate, times, self._in(within)))

    def spoil_lines(self, act: OnLine, *, times: int = 1, within: float = 600.0) -> None:
        """Give the next commands to the server of streams another fate."""
        self._lines.append(Lurking(act, times, self._in(within)))

    def after_commands(self, act: OnAnswer, *, times: int = 1, within: float = 600.0) -> None:
        """Act when commands have taken place, and before anybody hears of it."""
        self._answers.append(Lurking(act, times, self._in(within)))

    def spoil_entries(self, act: OnEntry, *, times: int = 1, within: float = 600.0) -> None:
        """Decide whether the next new entries arrive."""
        self._new_entries.append(Lurking(act, times, self._in(within)))

    def spoil_receiver(
        self, manner: Callable[[str], Manner], *, times: int = 1, within: float = 600.0
    ) -> None:
        """Have the receiver take the next messages another way."""
        self._manners.append(Lurking(manner, times, self._in(within)))

    def after_telling(self, act: Callable[[str], bool], *, within: float = 600.0) -> None:
        """Act when the relay of a process has told something; whether that was the occasion."""
        self._tellings.append(Lurking(act, 1, self._in(within)))

    def overhear(self, commands: Sequence[c.Command]) -> None:
        """Keep what was said, so that it can be said again."""
        for command in commands:
            if isinstance(command, c.AttemptCommand):
                self.overheard.append(command)
            elif isinstance(command, c.Heartbeat):
                self.last_beats[command.session_id] = command

    def act_on(self, member: ClusterMember, moment: Moment, commands: Sequence[c.Command]) -> None:
        """A transaction has come so far: whoever waits for that acts, and may raise."""
        for armed in self._armed:
            if armed.moment == moment and armed.until_us < self.elapsed_us:
                armed.times = 0
            elif armed.moment == moment and armed.matches(member, commands):
                armed.times -= 1
                armed.act(member, commands)
                break
        self._armed = [armed for armed in self._armed if armed.times > 0]

    def forget_faults(self) -> None:
        """Nothing that was planned and has not happened will happen."""
        self.is_calm = True
        self._armed.clear()
        self._rings.clear()
        for lurking in (self._lines, self._answers, self._new_entries, self._manners, self._tellings):
            lurking.clear()
        self.cluster.redis.is_away = False
        for acts in (self.before_change, self.after_change):
            acts.clear()
        for fates in (self.step_fates, self.effect_fates):
            fates.clear()
        self.tool_fates.clear()

    def _in(self, seconds: float) -> int:
        return self.elapsed_us + round(seconds * MICROSECONDS)

    def _fate_of_ring(self, ringer: str, listener: str, topics: frozenset[str]) -> list[float]:
        usual = self.cluster.network.arrives(ringer, listener, topics)
        self._rings = [ring for ring in self._rings if ring.times > 0 and ring.until_us > self.elapsed_us]
        if not self._rings:
            return usual
        ring = self._rings[0]
        if not ring.is_noted:
            ring.is_noted = True
            self.happened(ring.name, ringer, f"to {listener}")
        ring.times -= 1
        return ring.fate(usual)

    def _lurking(self, lurking: list[Lurking[A]]) -> list[Lurking[A]]:
        """Those that still wait; the others are forgotten."""
        if lurking:
            lurking[:] = [one for one in lurking if one.times > 0 and one.until_us > self.elapsed_us]
        return lurking

    def _fate_of_commands(self, owner: str, commands: Commands) -> LineFate:
        for one in self._lurking(self._lines):
            fate = one.act(self.cluster.members[owner], commands)
            if fate is not None:
                one.times -= 1
                return fate
        return ""

    def _commands_done(self, owner: str, commands: Commands, answers: list[Any]) -> None:
        for one in self._lurking(self._answers):
            if one.act(self.cluster.members[owner], commands, answers):
                one.times -= 1
                return

    def _accepts(self, key: bytes, fields: list[bytes]) -> bool:
        self.entries.append((key, fields))
        for one in self._lurking(self._new_entries):
            does_arrive = one.act(key, fields)
            if does_arrive is not None:
                one.times -= 1
                return does_arrive
        return True

    def _was_told(self, owner: str) -> None:
        for one in self._lurking(self._tellings):
            if one.act(owner):
                one.times -= 1
                return

    def _manner_of_receiver(self, owner: str, messages: Sequence[Outgoing]) -> Manner:
        for one in self._lurking(self._manners):
            one.times -= 1
            return one.act(owner)
        return ""


class PlannedFates(Fates):
    """What the plan has in store for agents' own functions."""

    def __init__(self, occasions: Occasions) -> None:
        self._occasions = occasions

    def step_seconds(self) -> float:
        if not self._occasions.step_fates:
            return 0.0
        name, seconds = self._occasions.step_fates.popleft()
        self._occasions.happened(name, "agent", f"{seconds:.0f} s")
        if not seconds:
            raise OSError("the step broke")
        return seconds

    def effect_seconds(self, key: str) -> float:
        fates = self._occasions.effect_fates
        if not fates or fates[0][1] < 0:
            return 0.0
        name, seconds = fates.popleft()
        self._occasions.happened(name, "outside", f"{key} {seconds:.0f} s")
        return seconds

    def before_change(self, pid: int, key: str) -> None:
        self._act(self._occasions.before_change, pid, key)

    def after_change(self, pid: int, key: str) -> None:
        self._act(self._occasions.after_change, pid, key)
        fates = self._occasions.effect_fates
        if fates and fates[0][1] < 0:
            name, _ = fates.popleft()
            self._occasions.happened(name, "outside", key)
            raise OSError("the line broke")

    def _act(self, acts: deque[ByEffect], pid: int, key: str) -> None:
        members = self._occasions.cluster.members.values()
        member = next((one for one in members if one.process.pid == pid), None)
        if acts and member is not None:
            acts.popleft()(member, key)
