"""The server of streams loses, doubles, delays and resurrects entries; connections break; workers die."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from endwell.runtime.virtual.scheduler import Dice
from endwell.streams.protocol import DLQ, ORCHESTRATOR_GROUP, RESULT, TASK, WORKERS_GROUP
from endwell.testing.cluster import ClusterMember
from endwell.testing.faults.registry import fault
from endwell.testing.redis.server import CommandFate, RedisCommands, SimulatedRedis
from endwell.testing.simulation import Simulation

TASKS: Final = TASK.encode()
RESULTS: Final = RESULT.encode()
LATE_SECONDS: Final = (0.5, 8, 60)


def _server_of(sim: Simulation) -> SimulatedRedis:
    return sim.cluster.redis.server


def _once_in_use(sim: Simulation, act: Callable[[], None]) -> None:
    """Act as soon as an entry is pending or on the task stream."""

    def act_if_in_use() -> bool:
        stream = _server_of(sim).find_stream(TASKS)
        group = None if stream is None else stream.groups.get(WORKERS_GROUP.encode())
        is_used = stream is not None and bool(stream.entries or (group is not None and group.pending))
        if is_used:
            act()
        return is_used

    sim.retry_until(act_if_in_use, every=0.5)


def _withhold_tasks(sim: Simulation, name: str, times: int, on_entry: Callable[[list[bytes]], None]) -> None:
    """Lose the next task entries, and call `on_entry` with each."""

    def withhold(key: bytes, fields: list[bytes]) -> bool | None:
        if key != TASKS:
            return None
        sim.count_fault(name, "redis", _subject(fields))
        on_entry(fields)
        return False

    sim.wait_at("entry", withhold, times=times)


def _is_for_us(key: bytes, fields: list[bytes]) -> bool:
    """Whether it is an offer or a report, and no result that is published for other programs."""
    return key == TASKS or (key == RESULTS and b"event_id" not in fields[::2])


def _subject(fields: list[bytes]) -> str:
    return fields[1].decode(errors="replace") if len(fields) > 1 else ""


def put_entry(sim: Simulation, key: bytes, fields: list[bytes]) -> None:
    """Add an entry that no other fault will touch."""
    server = _server_of(sim)
    accepts, server.accepts = server.accepts, lambda key, fields: True
    try:
        server.answer(("XADD", key, "*", *fields))
    finally:
        server.accepts = accepts


def _put_later(sim: Simulation, key: bytes, fields: list[bytes], seconds: float) -> None:
    sim.cluster.scheduler.run_after(seconds, lambda: put_entry(sim, key, fields))


@fault(weight=5, needs="queue")
def entry_lost(sim: Simulation, dice: Dice) -> None:
    """The server confirms an entry and then loses it, as in a failover."""

    def act(key: bytes, fields: list[bytes]) -> bool | None:
        if not _is_for_us(key, fields):
            return None
        sim.count_fault("entry_lost", "redis", _subject(fields))
        return False

    sim.wait_at("entry", act, times=dice.choice((1, 2, 5)))


@fault(weight=5, needs="queue")
def entry_doubled(sim: Simulation, dice: Dice) -> None:
    """An entry is on its stream twice."""
    seconds = dice.choice((0, *LATE_SECONDS))

    def act(key: bytes, fields: list[bytes]) -> bool | None:
        if not _is_for_us(key, fields):
            return None
        sim.count_fault("entry_doubled", "redis", _subject(fields))
        _put_later(sim, key, fields, seconds)
        return True

    sim.wait_at("entry", act, times=dice.choice((1, 3)))


@fault(weight=4, needs="queue")
def entry_late(sim: Simulation, dice: Dice) -> None:
    """An entry for workers arrives much later than it was sent."""
    seconds = dice.choice((5, 45, 200))
    _withhold_tasks(sim, "entry_late", 1, lambda fields: _put_later(sim, TASKS, fields, seconds))


@fault(weight=3, needs="queue")
def entries_out_of_order(sim: Simulation, dice: Dice) -> None:
    """Entries overtake each other."""

    def again(fields: list[bytes]) -> None:
        _put_later(sim, TASKS, fields, dice.random() * 3)

    _withhold_tasks(sim, "entries_out_of_order", 4, again)


@fault(weight=5, needs="queue")
def entry_resurrected(sim: Simulation, dice: Dice) -> None:
    """Old entries are on their streams again."""

    def try_to_act() -> bool:
        found = [(key, fields) for key, fields in sim.entries if _is_for_us(key, fields)]
        for key, fields in dice.sample(found, min(3, len(found))):
            sim.count_fault("entry_resurrected", "redis", _subject(fields))
            put_entry(sim, key, fields)
        return bool(found)

    sim.retry_until(try_to_act)


@fault(weight=4, needs="queue")
def stream_trimmed(sim: Simulation, dice: Dice) -> None:
    """Another client trims the streams much too short."""
    length = dice.choice((0, 0, 1))

    def act() -> None:
        sim.count_fault("stream_trimmed", "redis", f"to {length}")
        for key in (TASKS, RESULTS):
            _server_of(sim).answer(("XTRIM", key, "MAXLEN", length))

    _once_in_use(sim, act)


@fault(weight=4, needs="queue")
def server_forgets_everything(sim: Simulation, dice: Dice) -> None:
    """The server is flushed, or comes back empty."""

    def act() -> None:
        sim.count_fault("server_forgets_everything", "redis")
        if dice.happens(0.5):
            sim.cluster.redis.cut_all()
        _server_of(sim).remove_all()

    _once_in_use(sim, act)


@fault(weight=4, needs="queue")
def server_forgets_the_last_seconds(sim: Simulation, dice: Dice) -> None:
    """A replica takes over that lags behind: new entries are gone, deleted ones are back."""
    seconds = dice.choice((1, 1, 5, 30))

    def act() -> None:
        before = _server_of(sim).snapshot()

        def fail_over() -> None:
            sim.count_fault("server_forgets_the_last_seconds", "redis", f"{seconds} s")
            sim.cluster.redis.cut_all()
            _server_of(sim).restore(before)

        sim.cluster.scheduler.run_after(seconds, lambda: None if sim.is_calm else fail_over())

    _once_in_use(sim, act)


@fault(weight=3, needs="queue")
def groups_forgotten(sim: Simulation, dice: Dice) -> None:
    """A stream is evicted, or its group removed: readers get NOGROUP."""
    losses = (
        ("DEL", TASK),
        ("DEL", RESULT),
        ("DEL", DLQ),
        ("XGROUP", "DESTROY", TASK, WORKERS_GROUP),
        ("XGROUP", "DESTROY", RESULT, ORCHESTRATOR_GROUP),
    )
    words = dice.choice(losses)

    def act() -> None:
        sim.count_fault("groups_forgotten", "redis", " ".join(words))
        _server_of(sim).answer(words)

    _once_in_use(sim, act)


@fault(weight=4, needs="queue")
def server_away(sim: Simulation, dice: Dice) -> None:
    """For a while no process reaches the server."""
    seconds = dice.choice((1, 20, 90, 400))

    def come_back() -> None:
        sim.cluster.redis.is_away = False

    def act() -> None:
        sim.count_fault("server_away", "redis", f"{seconds} s")
        sim.cluster.redis.is_away = True
        sim.cluster.redis.cut_all()
        sim.cluster.scheduler.run_after(seconds, come_back)

    _once_in_use(sim, act)


@fault(weight=4, needs="queue")
def lines_cut(sim: Simulation, dice: Dice) -> None:
    """All connections break, and the next few attempts fail."""
    times = dice.choice((1, 4, 12))

    def act() -> None:
        sim.count_fault("lines_cut", "redis")
        sim.cluster.redis.cut_all()
        sim.wait_at("commands", lambda member, commands: "cut", times=times, within=60)

    _once_in_use(sim, act)


SWALLOWED_COMMANDS: Final = (
    *("DEL", "EVAL", "HSET", "SET", "XACK", "XADD", "XAUTOCLAIM"),
    *("XCLAIM", "XDEL", "XGROUP", "XREADGROUP", "XTRIM"),
)


def _command_names(commands: RedisCommands) -> set[str]:
    return {str(words[0]) for words in commands}


@fault(weight=6, needs="queue")
def answer_of_the_server_swallowed(sim: Simulation, dice: Dice) -> None:
    """Commands are executed, and their sender gets a broken connection for an answer."""
    wanted = dice.choice(SWALLOWED_COMMANDS)

    def act(member: ClusterMember, commands: RedisCommands) -> CommandFate | None:
        if wanted not in _command_names(commands):
            return None
        sim.count_fault("answer_of_the_server_swallowed", member.name, wanted)
        return "swallowed"

    sim.wait_at("commands", act, times=dice.choice((1, 1, 3)))


@fault(weight=4, needs="queue")
def line_leads_nowhere(sim: Simulation, dice: Dice) -> None:
    """One process gets neither an answer nor an error from the server."""
    seconds, victim = dice.choice((10, 60, 200)), list[str]()

    def act(member: ClusterMember, commands: RedisCommands) -> CommandFate | None:
        if not victim and member.kind != "client":
            victim.append(member.name)
            sim.count_fault("line_leads_nowhere", member.name, f"{seconds} s")
        return "silent" if [member.name] == victim else None

    sim.wait_at("commands", act, times=100_000, within=seconds)


@fault(weight=6, always=1, needs="queue")
def killed_between_two_commands(sim: Simulation, dice: Dice) -> None:
    """A process dies when the server has executed its command, and before the answer."""
    wanted = dice.choice(("XADD", "XACK", "XCLAIM", "XREADGROUP", "SET", "HSET", "XAUTOCLAIM", "EVAL"))

    def act(member: ClusterMember, commands: RedisCommands, answers: list[Any]) -> bool | None:
        if wanted not in _command_names(commands) or (
            wanted == "XREADGROUP" and not isinstance(answers[0], list)
        ):
            return None
        sim.count_fault("killed_between_two_commands", member.name, wanted)
        sim.kill(member, down_seconds=dice.choice((2, 20, 90)))
        return True

    sim.wait_at("answers", act)


@fault(weight=4, needs="queue")
def orchestrator_frozen_while_it_publishes(sim: Simulation, dice: Dice) -> None:
    """An orchestrator freezes between looking at a mark on the server and moving it; another takes over."""
    wanted, seconds = dice.choice(("result:cursor", "dlq:index")), dice.choice((60, 300))
    name = f"pmo{2 + dice.randrange(2)}"
    if name not in sim.kept:
        sim.run_member(name, "pmo", seconds=1800.0)

    def act(member: ClusterMember, commands: RedisCommands, answers: list[Any]) -> bool | None:
        looks = [words for words in commands if words[0] in ("GET", "HMGET") and words[1] == wanted]
        if member.kind != "pmo" or not looks:
            return None
        sim.count_fault("orchestrator_frozen_while_it_publishes", member.name, f"{wanted}, {seconds} s")
        sim.freeze(member, seconds)
        return True

    sim.wait_at("answers", act)


@fault(weight=3, needs="queue")
def clock_of_the_server_jumps(sim: Simulation, dice: Dice) -> None:
    """The server's clock is corrected: entries look older than they are, or younger."""
    seconds = dice.choice((1.2, 3, -0.5)) * sim.lease_seconds

    def act() -> None:
        sim.count_fault("clock_of_the_server_jumps", "redis", f"{seconds:.0f} s")
        _server_of(sim).offset_ms += round(seconds * 1000)

    _once_in_use(sim, act)


NONSENSE: Final[tuple[tuple[bytes, tuple[bytes, ...]], ...]] = (
    (
        TASKS,
        (b"task_id", b"\xff\xfe", b"tool_name", b"job", b"payload", b"{}", b"turn", b"t", b"epoch", b"1"),
    ),
    (TASKS, (b"task_id", b"nobody", b"tool_name", b"job", b"payload", b"{}")),
    (TASKS, (b"task_id", b"x", b"tool_name", b"job", b"payload", b"{}", b"turn", b"t", b"epoch", b"soon")),
    (TASKS, (b"task_id", b"x", b"tool_name", b"unheard", b"payload", b"{}", b"turn", b"t", b"epoch", b"1")),
    (TASKS, (b"task_id", b"x", b"tool_name", b"job", b"payload", b"{}", b"turn", b"t", b"epoch", b"1")),
    (RESULTS, (b"task_id", b"x", b"status", b"succeeded")),
    (RESULTS, (b"status", b"\x80")),
)


@fault(weight=2, needs="queue")
def stranger_writes_nonsense(sim: Simulation, dice: Dice) -> None:
    """Another client adds entries that cannot be used."""
    sim.count_fault("stranger_writes_nonsense", "redis")
    for key, fields in dice.sample(NONSENSE, 3):
        put_entry(sim, key, list(fields))


def on_foreign(sim: Simulation, act: Callable[[ClusterMember], None]) -> None:
    """Act on the first foreign worker that holds a turn."""

    def try_to_act() -> bool:
        found = [member for member in sim.members_of("foreign") if member.is_up and member.held_count]
        for member in found[:1]:
            act(member)
        return bool(found)

    sim.retry_until(try_to_act, every=0.5)


@fault(weight=4, always=1, needs="queue")
def foreign_worker_killed(sim: Simulation, dice: Dice) -> None:
    """A foreign worker dies while it holds turns."""

    def act(member: ClusterMember) -> None:
        sim.count_fault("foreign_worker_killed", member.name, f"held {member.held_count}")
        sim.kill(member, down_seconds=dice.choice((2, 60, 300)))

    on_foreign(sim, act)


@fault(weight=4, needs="queue")
def foreign_worker_frozen(sim: Simulation, dice: Dice) -> None:
    """A foreign worker stands still until its turns were reclaimed, then reports on them."""
    seconds = sim.lease_seconds * (1.2 + 2 * dice.random())

    def act(member: ClusterMember) -> None:
        sim.count_fault("foreign_worker_frozen", member.name, f"{seconds:.0f} s, held {member.held_count}")
        sim.freeze(member, seconds)

    on_foreign(sim, act)
