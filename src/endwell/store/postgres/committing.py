"""One try at one batch of commands on a connection to PostgreSQL.

A batch about named tasks is read without locks and written by one statement that is its own transaction: two
round trips, guarded by the versions that were read. A batch that takes tasks, renews a session or has lost a
race runs with locks on its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.policy.limits import Limits
from endwell.runtime.clock import Clock
from endwell.store import door
from endwell.store.claim_position import ClaimPosition
from endwell.store.postgres.row_reader import PostgresRowReader
from endwell.store.postgres.row_writer import Statement, compose_statements
from endwell.store.postgres.statements import QUERIES
from endwell.store.row_cache import RowCache
from endwell.store.rows import Outcome, TaskKey, Wanted, Writes

CLOCK_SECONDS = 1.0
"""How long the server's clock is estimated from its last reading, where no row has to be read."""
SEE_SESSIONS: Final = "see_sessions"
"""The query for sessions that are only looked at, and need no lock."""


class ServerClock:
    """The server's clock, carried on from its last reading by our own monotonic one.

    It does not run back unless the server's clock was set back. All connections of a store share it: what is
    submitted later must not look earlier because another connection carried it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._read_at = 0.0
        self._server_us = 0
        self._latest = 0

    def record(self, server_us: int) -> int:
        """Note a reading. It was taken a moment before now, so an estimate never runs ahead of the server."""
        self._server_us, self._read_at = server_us, self._clock.monotonic()
        return self._never_back(server_us)

    def estimate(self) -> int | None:
        """Return the time now; None when the last reading is too old to say."""
        passed = self._clock.monotonic() - self._read_at
        if not self._server_us or passed > CLOCK_SECONDS:
            return None
        return self._never_back(self._server_us + int(passed * SECOND))

    def _never_back(self, now_us: int) -> int:
        was_set_back = now_us < self._latest - int(CLOCK_SECONDS * SECOND)
        self._latest = now_us if was_set_back else max(self._latest, now_us)
        return self._latest


class SharedState(NamedTuple):
    """What the committing connections of one store share."""

    cache: RowCache
    position: ClaimPosition
    clock: ServerClock


class CommittingConnection:
    """Decides and writes batches. `doubt` is the outcome that may or may not be stored when it breaks."""

    def __init__(self, connection: Any, *, limits: Limits, shared: SharedState, writer: str) -> None:
        self.connection = connection
        self._limits = limits
        self._shared = shared
        self._writer = writer
        self.doubt: Outcome | None = None

    async def attempt(self, commands: Sequence[c.Command], *, shift: int, careful: bool) -> Outcome:
        """Decide and write these commands in one transaction; nothing at all when it fails."""
        self.doubt = None
        want = door.wanted_rows(commands, careful=careful)
        sessions = _sessions_query(commands)
        locking = careful or not _is_guarded(want, sessions)
        try:
            if locking:
                await self.connection.execute("BEGIN")
            known = {} if careful else self._shared.cache.find_tasks(want)
            outcome = await self._decide(commands, want, sessions, shift, known=known, locking=locking)
            writes = compose_statements(outcome.writes, self._writer)
            if not locking and len(writes) > 1:
                await self.connection.execute("BEGIN")
            if locking or len(writes) > 1:
                await self._write(writes)
        except BaseException:
            await self._roll_back()
            raise
        if locking or len(writes) > 1:
            await self._finish(outcome, "COMMIT")
        elif writes:
            await self._finish(outcome, *writes[0])
        return outcome

    async def _decide(
        self,
        commands: Sequence[c.Command],
        want: Wanted,
        sessions: str,
        shift: int,
        *,
        known: dict[TaskKey, Task],
        locking: bool,
    ) -> Outcome:
        """Read the rows that are not known, and decide; refuse nothing because of rows from the cache."""
        is_cached = bool(known)
        reader = PostgresRowReader(
            self.connection,
            known=known,
            position=self._shared.position,
            limits=self._limits,
            shift=shift,
            locking=locking,
            sessions=sessions,
        )
        rows = await reader.read(want)
        now = await self._now() if reader.now is None else self._shared.clock.record(reader.now - shift)
        outcome = door.outcome(commands, rows, now + shift, self._limits)
        if is_cached and any(reply.refusal is not None for reply in outcome.replies):
            self._shared.cache.forget()
            return await self._decide(commands, want, sessions, shift, known={}, locking=locking)
        return outcome

    async def _now(self) -> int:
        """Return the server's time; estimated when it was read a moment ago, and then never ahead of it."""
        estimate = self._shared.clock.estimate()
        if estimate is not None:
            return estimate
        return self._shared.clock.record(int(await self.connection.fetchval(QUERIES["clock"])))

    async def _write(self, writes: Sequence[Statement]) -> None:
        for sql, parameters in writes:
            await self.connection.fetchval(sql, *parameters)

    async def _finish(self, outcome: Outcome, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Send the statement that commits. Whether it did is in doubt until its answer is here."""
        self.doubt = outcome
        if parameters:
            await self.connection.fetchval(sql, *parameters)
        else:
            await self.connection.execute(sql)
        self.doubt = None

    async def _roll_back(self) -> None:
        if not self.connection.is_closed() and self.connection.is_in_transaction():
            await self.connection.execute("ROLLBACK")

    async def is_stored(self, writes: Writes) -> bool:
        """Whether a transaction took place. It is all or nothing, so one row of it tells."""
        trace = writes.presence_query
        if trace is None:
            return False
        name, parameters = trace
        return bool(await self.connection.fetchval(QUERIES[name], *parameters))


def _sessions_query(commands: Sequence[c.Command]) -> str:
    if any(isinstance(command, (c.Heartbeat, c.CloseSession)) for command in commands):
        return "lock_sessions"
    return "hold_sessions" if any(isinstance(command, c.ClaimNext) for command in commands) else SEE_SESSIONS


def _is_guarded(want: Wanted, sessions: str) -> bool:
    """Whether versions and unique keys alone keep two writers of these rows apart."""
    is_locking = want.held_by or want.ready or want.effects or want.cursors
    return not is_locking and (sessions == SEE_SESSIONS or not want.sessions)
