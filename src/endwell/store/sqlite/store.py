"""The store on one SQLite file.

Commits are made on the caller's event loop, in batches: a short transaction costs less than handing it to
another thread and back. What an event loop must not wait for (another process that holds the file, a batch
that has to be taken apart, a checkpoint) is left to a thread. Short questions are answered on the event loop
as well, since readers never wait for a writer; long ones have a thread of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import apsw

from endwell.model.commands import Command
from endwell.policy.limits import Limits
from endwell.runtime.base import Runtime
from endwell.store.contract import Ring, Store
from endwell.store.group_commit import CommitQueue, commands_of, fail, replies_of, settle
from endwell.store.log import Event, Logged, position_of
from endwell.store.probe import Probe, ProbeResult, Stamp
from endwell.store.reads.streams import START, QueuePosition, ReadyTurn
from endwell.store.rows import Reply
from endwell.store.sqlite.connection import BUSY_SECONDS, explained
from endwell.store.sqlite.driver import NotAtOnceError, SqliteDriver
from endwell.store.sqlite.question_thread import QuestionThread
from endwell.store.sqlite.statements import QUERIES

log = logging.getLogger(__name__)
T = TypeVar("T")

FEW: Final = 20
"""Most ids that a question may name and still be short."""

BUSY_PAUSE_SECONDS = 0.001
"""How long to wait for a busy file: SQLite's own pauses grow to 100 ms, and a rare writer starves."""
WRITE_LOCK_BYTE: Final = 120
"""Where SQLite locks the file of shared memory for the one connection that writes to the log."""
LOCK_LOOKS: Final = 20
LOCK_SECONDS: Final = 1.0
"""For how long, and in how many looks, the same process must hold the write lock to be called stuck."""


class SqliteStore(Store):
    """Safe with several processes on one file; group commit under load, one commit of latency when idle."""

    has_stamps: ClassVar[bool] = True

    def __init__(self, path: Path, *, limits: Limits, runtime: Runtime, ring: Ring | None = None) -> None:
        self._path = path
        self._limits = limits
        self._runtime = runtime
        self._ring = ring
        self._queue = CommitQueue()
        self._writing = runtime.new_lock()
        self._reading = runtime.new_lock()
        self._writer: SqliteDriver
        self._reader: SqliteDriver
        self._questions: QuestionThread

    async def open(self) -> None:
        self._writer = await self._runtime.in_thread(self._connect)
        patient = await self._runtime.in_thread(self._connect)
        self._reader = await self._runtime.in_thread(self._connect)
        self._reader.may_wait = False
        self._attendant = self._runtime.start_attendant(self._commit_patiently, "endwell-sqlite-writer")
        self._questions = QuestionThread(self._runtime, "endwell-sqlite-reader", on_closed=patient.close)
        self._patient = patient
        self.mark_open()

    def _connect(self) -> SqliteDriver:
        now = self._runtime.clock.now_us
        return SqliteDriver(self._path, limits=self._limits, now=now, pause=self._pause)

    def _pause(self, count: int) -> bool:
        """Wait a moment for a busy file; False when that has taken too long."""
        if count * BUSY_PAUSE_SECONDS > BUSY_SECONDS:
            return False
        self._runtime.block(BUSY_PAUSE_SECONDS * (0.5 + self._runtime.ids.fraction()))
        return True

    async def close(self) -> None:
        if self.is_open:
            self.mark_closed()
            self._attendant.call()
            await self._attendant.wait_ended()
            await self._questions.close()
            with self._reading:
                self._reader.close()

    def for_another_loop(self) -> Store:
        return self  # the queue serves every event loop, heartbeats first

    # commits

    async def _commit(self, commands: Sequence[Command]) -> list[Reply]:
        self.require_open()
        parts = self._queue.put(commands)
        try:
            await self._runtime.sleep(0)  # others that are ready join this batch
            if len(parts) == 1 and not parts[0].is_taken:
                self._commit_at_once()
        except BaseException:
            for part in parts:
                part.future.cancel()  # the caller has left; its commands are run all the same
            raise
        finally:
            if self._writer.is_log_long or not all(part.is_taken for part in parts):
                self._attendant.call()
        return await replies_of(parts)

    def _commit_at_once(self) -> None:
        """Commit one batch here, if no other thread is at it and no other process holds the file."""
        if self._writer.is_log_long or not self._writing.acquire(False):
            return
        topics: set[str] = set()
        try:
            topics = self._commit_batch(at_once=True)
        except NotAtOnceError:
            return
        finally:
            self._writing.release()
        self._ring_for(topics)

    def _commit_patiently(self) -> bool:
        """Commit all that waits, in the store's thread; False when the store is closed."""
        while True:
            with self._writing:
                topics = self._commit_batch(at_once=False)
            self._ring_for(topics)
            with self._writing:
                self._make_checkpoint()
                if self._queue:
                    continue
                if not self.is_open:
                    self._writer.close()
                return self.is_open

    def _commit_batch(self, *, at_once: bool) -> set[str]:
        """Run what waits, up to the limit, in one transaction; return the topics to ring for."""
        batch = self._queue.take()
        commands = commands_of(batch)
        if not commands:
            return set()
        try:
            outcome = self._writer.run(commands, at_once=at_once)
        except NotAtOnceError:
            self._queue.put_back(batch)
            raise
        except Exception as error:
            fail(batch, error)
            return set()
        except BaseException:  # Ctrl-C must not lose the commits of other callers
            stored = self._writer.find_stored(commands)
            if stored is None:
                self._queue.put_back(batch)
                self._attendant.call()
            else:
                settle(batch, stored)
                self._ring_for(stored.bells)
            raise
        settle(batch, outcome)
        return outcome.bells

    def _make_checkpoint(self) -> None:
        try:
            self._writer.checkpoint()
        except (apsw.Error, OSError) as error:  # what was committed is safe in the log
            log.warning("%s: the write-ahead log could not be folded back: %s", self._path, error)

    def _ring_for(self, topics: set[str]) -> None:
        if self._ring is not None and topics:
            self._ring(topics)

    # questions

    async def now(self) -> int:
        return self._runtime.clock.now_us()

    async def probe(self, *asked: Probe) -> ProbeResult:
        now, stamp = self._runtime.clock.now_us(), self.stamp()
        is_short = all(probe.name in QUERIES.marked["short"] for probe in asked)
        row = await self._ask_driver(lambda driver: driver.probe(now, asked), is_short=is_short)
        return ProbeResult.from_row(now, asked, row[1:], stamp)

    def stamp(self) -> Stamp | None:
        """The reading connection's data version, which changes with every commit of another connection."""
        if not self.is_open or not self._reading.acquire(False):
            return None
        try:
            return self._reader.data_version()
        finally:
            self._reading.release()

    async def _rows(self, name: str, *parameters: Any) -> Sequence[Sequence[Any]]:
        is_short = name in QUERIES.marked["short"]
        is_short = is_short or (name in QUERIES.marked["short if few"] and len(parameters[1]) <= FEW)
        return await self._ask_driver(lambda driver: driver.rows(name, parameters), is_short=is_short)

    async def _ask_driver(self, question: Callable[[SqliteDriver], T], *, is_short: bool) -> T:
        self.require_open()
        if is_short:
            await self._runtime.sleep(0)  # a caller that asks in a tight loop lets others run
            if self._reading.acquire(False):
                try:
                    return question(self._reader)
                except apsw.Error:
                    pass  # recovery after a crash holds readers up for a moment; the thread may wait
                finally:
                    self._reading.release()
        found: T = await self._questions.ask(partial(self._answer, question))
        return found

    def _answer(self, question: Callable[[SqliteDriver], T]) -> T:
        with explained(self._path):
            return question(self._patient)

    async def ready_turns(
        self, namespace: str, agent: str, limit: int, after: QueuePosition = START
    ) -> list[ReadyTurn]:
        def read(driver: SqliteDriver) -> list[ReadyTurn]:
            now, found = self._runtime.clock.now_us(), list[ReadyTurn]()
            for (priority,) in driver.rows("priorities", (namespace, agent)):
                behind = after[1:] if priority == after.priority else (-1, "")
                asked = (namespace, agent, priority, now, *behind, limit - len(found))
                found += [ReadyTurn(*row) for row in driver.rows("ready_turns", asked)]
                if len(found) == limit:
                    break
            return found

        return await self._ask_driver(read, is_short=True)

    async def events_after(self, namespace: str, cursor: str, limit: int) -> list[Logged]:
        rows = await self._rows("events_after", namespace, position_of(cursor), limit)
        return [Logged(str(row[0]), row[1], Event(*row[2:-1]), row[-1] or b"") for row in rows]

    async def log_end(self) -> str:
        return str((await self._rows("log_end"))[0][0])

    async def settings(self) -> dict[str, Any]:
        read = await self._ask_driver(SqliteDriver.settings, is_short=False)
        return {**read, "blocked_by": await self._blocked_by()}

    async def _blocked_by(self) -> int | None:
        """The process that holds the write lock for longer than any commit takes, if there is one."""
        memory = self._path.with_name(f"{self._path.name}-shm")
        holder = self._runtime.lock_holder(memory, WRITE_LOCK_BYTE)
        for _ in range(LOCK_LOOKS):
            if holder is None:
                break
            await self._runtime.sleep(LOCK_SECONDS / LOCK_LOOKS)
            if self._runtime.lock_holder(memory, WRITE_LOCK_BYTE) != holder:
                return None
        return holder
