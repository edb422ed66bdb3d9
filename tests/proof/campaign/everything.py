"""A short simulated history in which every operation takes place, and a process may die at one of them.

Operations that are rare in a simulation are done by errands of the desk, with the same commands. An errand
that is cut short by a death is done again.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import astuple

from endwell.app import Endwell
from endwell.client import Client
from endwell.errors import EndwellError
from endwell.model import commands as c
from endwell.model import status as s
from endwell.model.commands import MarkRestored
from endwell.model.moments import SECOND
from endwell.redis_client import Word
from endwell.runtime import Runtime
from endwell.runtime.virtual.scheduler import START_US
from endwell.testing.cluster import ClusterMember
from endwell.testing.faults import all as all_faults
from endwell.testing.installation import QueueKind, installation_for
from endwell.testing.occasions import Point
from endwell.testing.redis.server import RedisCommands
from endwell.testing.simulation import Simulation, SimulationResult
from endwell.testing.store_tap import KilledError, Moment
from endwell.turn.context import Context
from tests.support.manual_clock import ManualClock

HOURS: Final = 0.45
ORDERS: Final = 12
FAULTS: Final = 12
ROUNDS: Final = 12
DOWN_SECONDS: Final = 10.0
LISTS: Final = all_faults.LISTS
COMMITS: Final = {"commit": "before", "committed": "after"}
CHANGES: Final = ("XADD", "XACK", "XCLAIM", "HSET", "HDEL", "EVAL")
KEYS: Final = ("stream:task", "stream:result", "stream:dlq", "dlq:index")
HELD: Final = "look"
"""The reason of tasks that the desk holds for a moment."""


class Boundary(NamedTuple):
    """A moment at which a process dies: before or after the commit of an operation.

    With streams, also before or after a Redis command, such as `XADD:stream:task`.
    """

    who: str
    operation: str
    where: str

    def __str__(self) -> str:
        return f"{self.who}/{self.operation}/{self.where}"


class Everything(Simulation):
    """`strikes` are the boundaries at which processes are to die, in order; `struck`, where one did."""

    def __init__(
        self,
        seed: int,
        directory: Path,
        strikes: Sequence[Boundary] = (),
        *,
        queue: QueueKind | None = None,
    ) -> None:
        lived_in = installation_for(seed, hours=HOURS, orders=ORDERS, queue=queue)
        super().__init__(seed, directory, lived_in, FAULTS)
        self.seen: Counter[tuple[str, str]] = Counter()
        self.struck: list[Boundary] = []
        self._strikes = list(strikes)
        self._errands = list(ERRANDS)
        self.cluster.listeners.append(self._at_commit)

    def _at_commit(self, member: ClusterMember, moment: Moment, commands: Sequence[c.Command]) -> None:
        where = COMMITS.get(moment)
        if where is not None and self._is_struck(member, where, {type(one).__name__ for one in commands}):
            raise KilledError

    def reach(self, point: Point, *given: Any) -> Any:
        """Kill the process also before or after its Redis commands."""
        if point == "commands" and self._is_struck(given[0], "before", operations_of(given[1])):
            return "silent"
        answer = super().reach(point, *given)
        if point == "answers":
            self._is_struck(given[0], "after", operations_of(given[1]))
        return answer

    def _is_struck(self, member: ClusterMember, where: str, operations: set[str]) -> bool:
        """Whether a process is to die at this boundary; then it is dead now."""
        if self.is_calm or member.is_over:  # no fault may happen from now on
            return False
        if where == "after":
            self.seen.update({(member.kind, operation): 1 for operation in operations})
        boundary = self._strikes[0] if self._strikes else None
        if boundary is None or (member.kind, where) != (boundary.who, boundary.where):
            return False
        if boundary.operation not in operations:
            return False
        self.struck.append(self._strikes.pop(0))
        self.count_fault(f"killed {where} a commit", member.name, boundary.operation)
        self.kill(member, DOWN_SECONDS)
        return True

    def _register(self, app: Endwell) -> None:
        super()._register(app)

        @app.agent("circler", retries=1)
        async def circler(ctx: Context) -> int:
            for _ in range(ROUNDS):
                await ctx.step("look", _look, 1)
            return len(await ctx.nudges())

    async def _bring_people(self, member: ClusterMember) -> None:
        await super()._bring_people(member)
        member.spawn(self._run_errands(member), "errands")

    async def _run_errands(self, member: ClusterMember) -> None:
        while self._errands and not self.is_calm:
            await member.runtime.sleep(15)
            try:
                if await self._errands[0](self, member.client):
                    self._errands.append(self._errands.pop(0))  # and once more, in the next round
            except EndwellError as error:
                self.note_refusal(self._errands[0].__name__, error)
                self._errands.append(self._errands.pop(0))
        await self.let_go(member.client)

    async def let_go(self, client: Client) -> None:
        """Unblock the tasks that the desk holds, also after a death between holding and letting go."""
        for task in list(self.view.tasks.values()):
            if task.status == s.BLOCKED and task.reason == HELD:
                await client.actions.assign(task.id, "bob")
                await client.actions.unblock(task.id)

    def about(self) -> dict[str, Any]:
        return {"command_id": self.new_id(), "namespace": "default", "actor": "errand"}

    def some_task(self, *statuses: str) -> str | None:
        """Return the oldest task that has one of these statuses."""
        return next((task.id for task in self.view.tasks.values() if task.status in statuses), None)


def operations_of(commands: RedisCommands) -> set[str]:
    """Name the changes that these Redis commands make, by command and key."""
    words = [(_word(each[0]), _word(key)) for each in commands for key in _keys(each)]
    return {f"{command}:{key}" for command, key in words if command in CHANGES and key in KEYS}


def _keys(command: Sequence[Word]) -> Sequence[Word]:
    """List the keys of a command; a script names how many it has."""
    return command[3 : 3 + int(command[2])] if _word(command[0]) == "EVAL" else command[1:2]


def _word(word: Word) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


def _look(number: int) -> int:
    return number


Errand = Callable[[Everything, Client], Awaitable[bool]]


async def _goes_in_circles(sim: Everything, client: Client) -> bool:
    await client.submit("circler", deadline=600)
    return True


async def _blocks_and_unblocks(sim: Everything, client: Client) -> bool:
    task_id = sim.some_task(s.QUEUED, s.SUSPENDED)
    if task_id is not None:
        await client.store.commit_one(c.Block(task_id=task_id, reason=HELD, owner="ada", **sim.about()))
    await sim.let_go(client)
    return True


async def _ends_some(sim: Everything, client: Client) -> bool:
    handle = await client.submit("job", {"kind": "plain", "n": -1, "seconds": 1}, delay=500)
    await client.actions.assign(handle.id, "bob")
    await client.actions.retry(handle.id)
    await client.actions.cancel(handle.id)
    return True


async def _cares_for_dead_letters(sim: Everything, client: Client) -> bool:
    hopeless = {"kind": "hopeless", "n": -2, "seconds": 0.1}
    for _ in range(2):
        await client.submit("job", hopeless)
    letters = [task for task in sim.view.tasks.values() if task.dead_letter == "open"]
    if len(letters) > 1:
        await client.actions.replay(letters[0].id)
        await client.actions.abandon(letters[-1].id, "enough")
    return True


async def _is_told_no(sim: Everything, client: Client) -> bool:
    """Let one task keep a draft before it fails, and two tasks ask for approval of one effect."""
    await client.submit("job", {"kind": "drafts", "n": -4, "seconds": 1})
    await client.submit("job", {"kind": "merger", "n": -5, "seconds": 1, "steps": 0, "patience": 600})
    asked = await client.store.approvals_page("default", only_open=True, limit=1)
    for approval in asked:
        await client.reject(approval.id, by="bob")
    return bool(asked)


async def _sends_a_worker_home(sim: Everything, client: Client) -> bool:
    """Stop a worker whose turn takes longer than the worker may drain."""
    busy = [member for member in sim.members_of("worker") if member.is_up and member.held_count]
    if not busy:
        await client.submit("job", {"kind": "plain", "n": -3, "seconds": 200}, deadline=900)
    for member in busy[:1]:
        member.stop()
    return bool(busy)


async def _follows_the_log(sim: Everything, client: Client) -> bool:
    lease = 60 * SECOND
    taken = c.TakeCursor(name="follower", holder="desk", lease=lease, **sim.about())
    cursor = (await client.store.commit_one(taken)).cursor
    if cursor is not None:
        at: dict[str, Any] = {"fence": cursor.fence, "position": cursor.position, "lease": lease}
        await client.store.commit_one(c.MoveCursor(name="follower", holder="desk", **at, **sim.about()))
    return True


async def _looks_through_messages(sim: Everything, client: Client) -> bool:
    """Close, requeue and skip messages of an ended task, as a late watchdog does."""
    over = sim.view.query_rows("SELECT id, task_id FROM agent_inbox WHERE status = 'consumed' LIMIT 1")
    if over:
        message_id, task_id = over[0]
        ids = (message_id,)
        await client.store.commit(
            (
                c.RequeueResumes(**sim.about()),
                c.RequeueMessages(message_ids=ids, before=0, **sim.about()),
                c.CloseMessages(message_ids=ids, why=None, status="consumed", **sim.about()),
                c.SkipMessage(task_id=task_id, message_id=message_id, why="late", **sim.about()),
                c.TakeResumes(message_ids=ids, lease=SECOND, **sim.about()),
            )
        )
    return bool(over)


async def _wakes(sim: Everything, client: Client) -> bool:
    """Dispatch and wake agents, as a supervisor does when it has found work."""
    offer = c.DispatchNext(agent="job", limit=1, **sim.about())
    await client.store.commit((offer, c.WakeAgents(agents=("job",), **sim.about())))
    await client.store.commit_one(c.FoldTallies(idle=3600 * SECOND, **sim.about()))
    return True


async def _takes_over_a_record(sim: Everything, client: Client) -> bool:
    task_id, events, cards = _record()
    if task_id not in sim.view.tasks:
        adopt = c.Adopt(task_id=task_id, events=events, cards=cards, **sim.about())
        (await client.store.commit_one(adopt)).unwrap()
    return True


async def _says_that_the_record_was_restored(sim: Everything, client: Client) -> bool:
    await client.store.commit_one(MarkRestored(**sim.about()))
    return True


@cache
def _record() -> tuple[str, tuple[tuple[Any, ...], ...], tuple[Any, ...]]:
    """Make the record of an ended task in another store."""
    with tempfile.TemporaryDirectory(prefix="endwell-record-") as directory:
        return asyncio.run(_recorded(f"sqlite:///{directory}/other.db"))


async def _recorded(url: str) -> tuple[str, tuple[tuple[Any, ...], ...], tuple[Any, ...]]:
    app = Endwell(url, runtime=Runtime.system(clock=ManualClock(START_US)))

    @app.agent("job")
    async def job(job: Any) -> None: ...

    async with app.connect() as node:
        await node.store.commit_one(
            c.RegisterAgents(command_id="r", namespace="default", agents=(app.agents["job"].spec(),))
        )
        handle = await node.client.submit("job", {"n": 1})
        await handle.cancel()
        events = await node.store.events_of_task("default", handle.id)
        cards = await node.store.cards_between("default", f"{handle.id}.", f"{handle.id}/")
        return handle.id, tuple(astuple(event) for event in events), tuple(cards)


ERRANDS: Final[tuple[Errand, ...]] = (
    _goes_in_circles,
    _blocks_and_unblocks,
    _follows_the_log,
    _ends_some,
    _looks_through_messages,
    _wakes,
    _cares_for_dead_letters,
    _is_told_no,
    _sends_a_worker_home,
    _takes_over_a_record,
    _says_that_the_record_was_restored,
)


def live(
    seed: int, strikes: Sequence[Boundary] = (), *, queue: QueueKind | None = None
) -> tuple[Everything, SimulationResult]:
    """Run such a history, in memory where the system offers that."""
    _record()
    shared = Path("/dev/shm")  # noqa: S108 (a fresh directory in it, readable by its owner alone)
    home = str(shared) if shared.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="endwell-sim-", dir=home) as directory:
        history = Everything(seed, Path(directory), strikes, queue=queue)
        return history, history.run()
