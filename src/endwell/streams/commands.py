"""The orchestrator's end: puts dispatched turns on the stream, hears foreign workers, keeps streams short.

It decides nothing. What it is told comes from the store, and what it hears goes there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from endwell.model.content import read_as
from endwell.policy.foreign import MAX_WORKERS
from endwell.redis_client import Connect, Refusal, Unreachable, Word
from endwell.runtime.base import Runtime
from endwell.streams.contract import Delivery
from endwell.streams.entries import (
    Carried,
    Malformed,
    RawFields,
    Result,
    is_plain,
    is_whole,
    malformed_letter,
    read_result,
    read_task,
    task_entry,
)
from endwell.streams.groups import make_groups
from endwell.streams.pending import PendingEntries, entries_of
from endwell.streams.protocol import ORCHESTRATOR_GROUP, WORKERS_GROUP, Names

ANSWER_SECONDS = 5.0
READ_LIMIT = 256
GRANT_SECONDS = 86_400
WORKER_BYTES = 32_768
"""Most that a foreign worker may say of itself: 200 agents with the longest names have room."""
KEPT_LETTERS = 100_000
"""Dead letters on the stream; the store has all of them."""


Lead = Literal["new", "kept", "other"]
"""`new`: nobody led just now; to whoever did so before, that the server has forgotten it."""


class ForeignRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """What a foreign worker says of itself."""

    name: str
    tools: tuple[str, ...]
    slots: int = 1


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The grant of one turn to a foreign worker."""

    task_id: str
    turn_id: str
    epoch: int

    @property
    def field(self) -> str:
        """Its name in the list of grants."""
        return f"{self.turn_id}:{self.epoch}"


class StreamOrchestrator:
    """One connection for commands and one that waits for results."""

    def __init__(
        self,
        url: str,
        names: Names,
        consumer: str,
        runtime: Runtime,
        *,
        connect: Connect,
        block_seconds: float,
    ) -> None:
        self.url = url
        self.names = names
        self.consumer = consumer
        self._runtime = runtime
        self._connect = connect
        self._block_seconds = block_seconds
        self.connection = connect()
        self._waiting = connect(blocking=True)
        self.tasks = PendingEntries(self.connection, names.task, WORKERS_GROUP)
        self._knows_minid = True
        self.results = PendingEntries(self.connection, names.result, ORCHESTRATOR_GROUP)

    async def make_groups(self) -> bool:
        """Whether one was missing: the server is new, or has forgotten."""
        return await make_groups(self.connection, self.names)

    async def publish_settings(self, settings: Mapping[str, Word]) -> None:
        """Say what a foreign worker must know and cannot guess."""
        words = [word for pair in settings.items() for word in pair]
        await self.connection.ask("HSET", self.names.settings, *words)

    async def close(self) -> None:
        """Let go of both connections; the lead goes to whoever wants it."""
        try:
            if await self.connection.ask("GET", self.names.leader) == self.consumer.encode():
                await self.connection.ask("DEL", self.names.leader)
        except (Unreachable, Refusal):
            pass
        await self.connection.close()
        await self._waiting.close()

    async def lead(self, seconds: float) -> Lead:
        """Whether this is the one that puts turns on the stream. Two at once would only put some twice."""
        milliseconds = int(seconds * 1000)
        take = ("SET", self.names.leader, self.consumer, "NX", "PX", milliseconds)
        taken, leader = await self.connection.ask_all([take, ("GET", self.names.leader)])
        if taken:
            return "new"
        if leader != self.consumer.encode():
            return "other"
        await self.connection.ask("PEXPIRE", self.names.leader, milliseconds)
        return "kept"

    async def put(self, turns: Sequence[Carried]) -> None:
        """Turns that are offered, in one round trip; all at once, or whoever waits gets the first alone."""
        if turns:
            add = ("XADD", self.names.task, "*")
            adding = [(*add, *task_entry(each)) for each in turns]
            await self.connection.ask_all(adding, atomic=len(adding) > 1)

    async def next_results(self) -> list[Result | Malformed]:
        """What foreign workers have said; waits a while for it."""
        words = ("XREADGROUP", "GROUP", ORCHESTRATOR_GROUP, self.consumer, "COUNT", READ_LIMIT)
        wait = ("BLOCK", int(self._block_seconds * 1000), "STREAMS", self.names.result, ">")
        try:
            async with self._runtime.timeout(self._block_seconds + ANSWER_SECONDS):
                found = await self._waiting.ask(*words, *wait)
        except TimeoutError:
            await self._waiting.close()
            self._waiting = self._connect(blocking=True)
            raise Unreachable("the server does not answer") from None
        return [read_result(each.decode(), raw) for _, entries in found or () for each, raw in entries]

    async def left_results(self, idle_ms: int) -> list[Result | Malformed]:
        """What another orchestrator read and never saw to."""
        overdue = await self.results.take_overdue(self.consumer, idle_ms)
        return [read_result(each.message_id, each.raw) for each in overdue]

    async def results_done(self, ids: Sequence[str]) -> None:
        """These were seen to: the store has them."""
        if ids:
            await self.connection.ask_all(_acknowledging(self.names.result, ORCHESTRATOR_GROUP, ids))

    async def results_read(self, ids: Sequence[str]) -> None:
        """These are for others: they stay on the stream."""
        if ids:
            await self.connection.ask("XACK", self.names.result, ORCHESTRATOR_GROUP, *ids)

    async def clear(self, ids: Sequence[str]) -> None:
        """These entries have served: nobody is to see them again."""
        if ids:
            await self.connection.ask_all(_acknowledging(self.names.task, WORKERS_GROUP, ids))

    async def give_back(self, consumer: bytes | str, ids: Sequence[str]) -> None:
        """Their holder is alive after all."""
        await self.connection.ask("XCLAIM", self.names.task, WORKERS_GROUP, consumer, 0, *ids, "JUSTID")

    async def bury(self, bad: Sequence[Malformed], failed_at: str, *, is_result: bool = False) -> None:
        """Entries that nobody can use become dead letters in the same step that acknowledges them."""
        stream, group = self.names.task, WORKERS_GROUP
        if is_result:
            stream, group = self.names.result, ORCHESTRATOR_GROUP
        for each in bad:
            letter = ("XADD", self.names.dlq, "*", *malformed_letter(each, failed_at))
            done = _acknowledging(stream, group, (each.message_id,))
            await self.connection.ask_all([letter, *done], atomic=True)

    async def grant(self, grant: Grant, attempt: str) -> None:
        """Let the foreign worker that asked with this attempt begin, and nobody else."""
        key = self.names.grant(grant.turn_id, grant.epoch)
        setting = ("SET", key, attempt, "EX", GRANT_SECONDS)
        listing = ("HSET", self.names.grants, grant.field, grant.task_id)
        await self.connection.ask_all([setting, listing], atomic=True)

    async def deny(self, turn_id: str, epoch: int) -> None:
        """There is nothing to be had; an existing grant stands."""
        await self.connection.ask("SET", self.names.grant(turn_id, epoch), "-", "NX", "EX", 60)

    async def grants(self) -> list[Grant]:
        """Every grant that was given and not yet revoked."""
        found = await self.connection.ask("HGETALL", self.names.grants)
        listed = [_listed_grant(found[n], found[n + 1]) for n in range(0, len(found), 2)]
        return [grant for grant in listed if grant is not None]

    async def granted(self, grants: Sequence[Grant]) -> list[str]:
        """Which attempts these grants name now; empty where a grant is gone."""
        keys = [self.names.grant(grant.turn_id, grant.epoch) for grant in grants]
        return [(each or b"").decode(errors="replace") for each in await self.connection.ask("MGET", *keys)]

    async def revoke(self, grants: Sequence[Grant]) -> None:
        """The attempts have ended, or were taken back: their workers must stop."""
        if grants:
            keys = [self.names.grant(grant.turn_id, grant.epoch) for grant in grants]
            removing = ("HDEL", self.names.grants, *(grant.field for grant in grants))
            await self.connection.ask_all([("DEL", *keys), removing], atomic=True)

    async def foreign_worker(self, name: str) -> ForeignRegistration | None:
        """What one foreign worker says of itself; None if it says nothing usable."""
        return read_worker(name, *(await self._said_by([name])))

    async def _said_by(self, names: Sequence[str]) -> list[bytes]:
        """What these workers say of themselves; empty where the key is missing or holds no text."""
        looks = [("GETRANGE", self.names.worker(name), 0, WORKER_BYTES) for name in names]
        try:
            return await self.connection.ask_all(looks)
        except Refusal:
            if len(names) == 1:
                return [b""]
        return [text for name in names for text in await self._said_by([name])]

    async def forget_worker(self, name: str) -> None:
        """It has signed off."""
        forgetting = [("SREM", self.names.workers, name), ("DEL", self.names.worker(name))]
        await self.connection.ask_all(forgetting)

    async def foreign_workers(self) -> list[ForeignRegistration]:
        """Those that have said lately what they serve; the names of others are forgotten.

        Of more names than may have a session, which anybody can add, only so many are looked at.
        """
        known = sorted(await self.connection.ask("SRANDMEMBER", self.names.workers, MAX_WORKERS))
        if not known:
            return []
        names = [name.decode(errors="replace") for name in known]
        said = await self._said_by(names)
        found = [
            read_worker(name, text) if is_plain(name) else None
            for name, text in zip(names, said, strict=True)
        ]
        gone = [raw for raw, worker in zip(known, found, strict=True) if worker is None]
        if gone:
            await self.connection.ask("SREM", self.names.workers, *gone)
        return [worker for worker in found if worker is not None]

    async def deliveries(self, ids: Sequence[str]) -> dict[str, Delivery]:
        """What entries say, without touching them; those that say nothing usable are left out."""
        looks = [("XRANGE", self.names.task, each, each) for each in ids]
        entries: dict[str, RawFields] = {}
        for answer in await self.connection.ask_all(looks) if looks else ():
            entries |= entries_of(answer)
        read = (read_task(each, raw) for each, raw in entries.items())
        return {each.message_id: each for each in read if isinstance(each, Delivery)}

    async def consumers(self) -> list[tuple[bytes, int, int]]:
        """Name, pending entries and idle milliseconds of each worker that the server knows."""
        rows = await self.connection.ask("XINFO", "CONSUMERS", self.names.task, WORKERS_GROUP)
        found = [_pairs(row) for row in rows]
        return [(row["name"], int(row["pending"]), int(row["idle"])) for row in found]

    async def forget_consumer(self, name: bytes) -> None:
        """It is gone and had nothing."""
        await self.connection.ask("XGROUP", "DELCONSUMER", self.names.task, WORKERS_GROUP, name)

    async def trim(self, *, results_kept: int = 0) -> None:
        """Drop what every group is done with: before the oldest pending entry, or all that was delivered.

        `results_kept`: so many published results stay for others to read.
        """
        for stream in (self.names.task, self.names.result):
            if not self._knows_minid:
                break
            if stream == self.names.result and results_kept:
                await self._trim_results(results_kept)
            elif (least := await self._least_needed(stream)) is not None:
                await self._trim_before(stream, least)
        await self.connection.ask("XTRIM", self.names.dlq, "MAXLEN", "~", KEPT_LETTERS)

    async def _trim_results(self, kept: int) -> None:
        """Drop the oldest results beyond `kept`, but none that the orchestrators have yet to read."""
        stream = self.names.result
        excess = int(await self.connection.ask("XLEN", stream)) - kept
        least = await self._least_needed(stream, ORCHESTRATOR_GROUP)
        while excess > 0 and least is not None and self._knows_minid:
            words = ("XRANGE", stream, "-", "+", "COUNT", min(excess, READ_LIMIT))
            oldest = list(entries_of(await self.connection.ask(*words)))
            if not oldest:
                return
            first, second = _order(oldest[-1])
            await self._trim_before(stream, "-".join(map(str, min((first, second + 1), _order(least)))))
            excess -= len(oldest)

    async def _trim_before(self, stream: str, least: str) -> None:
        """Servers before Redis 6.2 do not know how; there only what is deleted one by one goes."""
        try:
            await self.connection.ask("XTRIM", stream, "MINID", least)
        except Refusal as refusal:
            if refusal.code != "ERR":
                raise
            self._knows_minid = False

    async def _least_needed(self, stream: str, only: str | None = None) -> str | None:
        needed = []
        for row in await self.connection.ask("XINFO", "GROUPS", stream):
            group = _pairs(row)
            if only is not None and group["name"] != only.encode():
                continue
            summary = await self.connection.ask("XPENDING", stream, group["name"])
            if summary[0]:
                needed.append(_order(summary[1].decode()))
            else:
                first, second = _order(group["last-delivered-id"].decode())
                needed.append((first, second + 1))
        return "-".join(map(str, min(needed))) if needed else None


def _acknowledging(stream: str, group: str, ids: Sequence[str]) -> list[tuple[Word, ...]]:
    return [("XACK", stream, group, *ids), ("XDEL", stream, *ids)]


def read_worker(name: str, text: bytes) -> ForeignRegistration | None:
    """Read what a foreign worker says of itself, as JSON; None where it says nothing usable."""
    said = None if not text or len(text) > WORKER_BYTES else read_as(text, ForeignSaid)
    if said is None:
        return None
    return ForeignRegistration(name=name, tools=said.tools, slots=max(1, min(said.slots, 1000)))


def _listed_grant(field: bytes, task_id: bytes) -> Grant | None:
    turn_id, _, epoch = field.decode(errors="replace").rpartition(":")
    name = task_id.decode(errors="replace")
    if not is_whole(epoch) or not is_plain(turn_id) or not is_plain(name):
        return None
    return Grant(task_id=name, turn_id=turn_id, epoch=int(epoch))


class ForeignSaid(msgspec.Struct):
    tools: tuple[str, ...]
    slots: int = 1


def _pairs(row: Sequence[Any]) -> Mapping[str, Any]:
    """A flat list of names and values, as the protocol's second version sends a map."""
    return {row[n].decode(): row[n + 1] for n in range(0, len(row), 2)}


def _order(message_id: str) -> tuple[int, int]:
    first, _, second = message_id.partition("-")
    return int(first), int(second or 0)
