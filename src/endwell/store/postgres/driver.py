"""The door's driver for PostgreSQL: one connection, one try at one batch.

A batch about named tasks is read without locks and written by one statement that is its own transaction: two
round trips, guarded by the versions that were seen. Whatever takes the next tasks, renews a session or was
overtaken once before runs with the rows' locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from endwell.model import commands as c
from endwell.model.task import Task
from endwell.policy.limits import Limits
from endwell.runtime.clock import MICROSECONDS, Clock
from endwell.store import door
from endwell.store.claim_position import ClaimPosition
from endwell.store.postgres.reading import Reading
from endwell.store.postgres.statements import QUERIES
from endwell.store.postgres.writing import Statement, statements
from endwell.store.row_cache import RowCache
from endwell.store.rows import Outcome, TaskKey, Wanted, Writes

CLOCK_SECONDS = 1.0
"""How long the server's clock is reckoned from its last reading, where no row has to be read."""
SEEN = "see_sessions"
"""How sessions are read where they are only looked at, and need no lock."""


class PostgresDriver:
    """Runs batches on one connection. `doubt` is what may or may not have taken place when it breaks."""

    def __init__(
        self,
        connection: Any,
        *,
        limits: Limits,
        server: ServerClock,
        held: RowCache,
        reached: ClaimPosition,
        writer: str,
    ) -> None:
        self.connection = connection
        self._reached = reached
        self._writer = writer
        self._held = held
        self._limits = limits
        self._server = server
        self.doubt: Outcome | None = None

    async def attempt(self, commands: Sequence[c.Command], *, shift: int, careful: bool) -> Outcome:
        """Decide and write these commands, all in one transaction; nothing at all when it fails."""
        self.doubt = None
        want = door.wanted(commands, careful=careful)
        sessions = _sessions_query(commands)
        if not careful and _is_guarded(want, sessions):
            return await self._guarded(commands, want, sessions, shift)
        await self.connection.execute("BEGIN")
        try:
            outcome = await self._decided(commands, want, sessions, shift, locking=True, careful=careful)
            await self._write(statements(outcome.writes, self._writer))
        except BaseException:
            await self._roll_back()
            raise
        await self._final(outcome, "COMMIT")
        return outcome

    async def _guarded(
        self, commands: Sequence[c.Command], want: Wanted, sessions: str, shift: int
    ) -> Outcome:
        outcome = await self._decided(commands, want, sessions, shift)
        writes = statements(outcome.writes, self._writer)
        if len(writes) == 1:
            await self._final(outcome, *writes[0])
        elif writes:
            await self.connection.execute("BEGIN")
            try:
                await self._write(writes)
            except BaseException:
                await self._roll_back()
                raise
            await self._final(outcome, "COMMIT")
        return outcome

    async def _decided(
        self,
        commands: Sequence[c.Command],
        want: Wanted,
        sessions: str,
        shift: int,
        *,
        locking: bool = False,
        careful: bool = False,
    ) -> Outcome:
        """What becomes of them. A refusal writes nothing, so it is never decided on what we only remember."""

        async def decided(known: dict[TaskKey, Task]) -> Outcome:
            reading = Reading(
                self.connection,
                known=known,
                reached=self._reached,
                limits=self._limits,
                shift=shift,
                locking=locking,
                sessions=sessions,
            )
            rows = await reading.read(want)
            now = await self.now() if reading.now is None else self._server.heard(reading.now - shift)
            return door.outcome(commands, rows, now + shift, self._limits)

        known = {} if careful else self._held.known(want)
        is_remembered = bool(known)
        outcome = await decided(known)
        if is_remembered and any(reply.refusal is not None for reply in outcome.replies):
            self._held.forget()
            outcome = await decided({})
        return outcome

    async def now(self) -> int:
        """The server's clock; reckoned when it was read a moment ago, and then never ahead of it."""
        reckoned = self._server.reckoned()
        if reckoned is not None:
            return reckoned
        return self._server.heard(int(await self.connection.fetchval(QUERIES["clock"])))

    async def _write(self, writes: Sequence[Statement]) -> None:
        for sql, parameters in writes:
            await self.connection.fetchval(sql, *parameters)

    async def _final(self, outcome: Outcome, sql: str, parameters: Sequence[Any] = ()) -> None:
        """The statement that makes it so. Whether it did is in doubt until its answer is here."""
        self.doubt = outcome
        if parameters:
            await self.connection.fetchval(sql, *parameters)
        else:
            await self.connection.execute(sql)
        self.doubt = None

    async def _roll_back(self) -> None:
        if not self.connection.is_closed():
            await self.connection.execute("ROLLBACK")

    async def is_stored(self, writes: Writes) -> bool:
        """Whether a transaction took place. It is all or nothing, so one row of it tells."""
        trace = writes.trace
        if trace is None:
            return False
        name, parameters = trace
        return bool(await self.connection.fetchval(QUERIES[name], *parameters))


def _sessions_query(commands: Sequence[c.Command]) -> str:
    if any(isinstance(command, (c.Heartbeat, c.CloseSession)) for command in commands):
        return "lock_sessions"
    return "hold_sessions" if any(isinstance(command, c.ClaimNext) for command in commands) else SEEN


def _is_guarded(want: Wanted, sessions: str) -> bool:
    """Whether versions and unique keys alone keep two writers of these rows apart."""
    is_locking = want.held_by or want.ready or want.effects or want.cursors
    return not is_locking and (sessions == SEEN or not want.sessions)


class ServerClock:
    """The server's clock, carried on from its last reading by our own monotonic one.

    It does not run back, unless somebody has set the server's clock back. All connections of a store share
    it: what is submitted later must not look earlier because another connection carried it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard_at = 0.0
        self._server_us = 0
        self._latest = 0

    def heard(self, server_us: int) -> int:
        """It was read a moment before now, so what is reckoned from here never runs ahead of it."""
        self._server_us, self._heard_at = server_us, self._clock.monotonic()
        return self._told(server_us)

    def reckoned(self) -> int | None:
        """The time now; None when the last reading is too old to say."""
        passed = self._clock.monotonic() - self._heard_at
        if not self._server_us or passed > CLOCK_SECONDS:
            return None
        return self._told(self._server_us + int(passed * MICROSECONDS))

    def _told(self, now_us: int) -> int:
        was_set_back = now_us < self._latest - int(CLOCK_SECONDS * MICROSECONDS)
        self._latest = now_us if was_set_back else max(self._latest, now_us)
        return self._latest
