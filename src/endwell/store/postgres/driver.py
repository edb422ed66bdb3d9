"""Runs batches on PostgreSQL until they are settled: reconnects, tries again, finds out what was stored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from endwell.errors import EndwellError, StoreError
from endwell.model.commands import Command
from endwell.policy.limits import Limits
from endwell.runtime.base import Runtime
from endwell.settings import mask_url
from endwell.store.postgres import errors
from endwell.store.postgres.committing import CommittingConnection, SharedState
from endwell.store.postgres.connection import (
    COMMITTING,
    Backend,
    backend_of,
    connect,
    end_backend,
    is_migrated,
    migrate,
    raise_positions,
)
from endwell.store.rows import Outcome, Reply, Writes

OUTAGE_SECONDS = 5.0
"""How long callers wait for a server that is away before the error is raised to them."""
CONFLICT_TRIES = 12
"""Tries of a batch that conflicts with another transaction (serialization failure, deadlock)."""
RACE_TRIES = 3
"""Tries of a batch that lost a race; from the second on it locks its rows."""
BUSY_TRIES = 2
"""Tries of a single command that waits for a lock, and commands in a row that may do so in vain."""
CLOSE_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 0.5

log = logging.getLogger(__name__)


class PostgresDriver:
    """One committing connection, replaced when it is lost."""

    def __init__(
        self, url: str, *, limits: Limits, runtime: Runtime, shift: Callable[[], int], shared: SharedState
    ) -> None:
        self._url = url
        self._limits = limits
        self._runtime = runtime
        self._shift = shift
        self._shared = shared
        self._writer = runtime.ids.new()
        self.current: CommittingConnection | None = None
        self._backend: Backend | None = None
        self._away_since: float | None = None

    async def open(self) -> None:
        """Connect and bring the schema up to date; wait for a server that is just starting."""
        tries = 0
        while True:
            try:
                await self._connect()
                return
            except Exception as error:
                tries += 1
                if not errors.is_starting(error):
                    raise errors.meaning_of(error, self._url) from error
                await self._drop(error, tries)

    async def close(self) -> None:
        """End the connection."""
        committing, self.current = self.current, None
        if committing is None:
            return
        try:
            await committing.connection.close(timeout=CLOSE_SECONDS)
        except Exception:
            committing.connection.terminate()

    async def run(self, commands: Sequence[Command]) -> Outcome:
        """Run all commands in one transaction; if the database refuses it, each in one of its own.

        When the connection breaks while the last statement is under way, it is unknown whether the
        transaction took place: the next connection looks, and what was stored is not done again.
        """
        doubt: Outcome | None = None
        tries = 0
        while True:
            committing: CommittingConnection | None = None
            try:
                committing = await self._connect()
                if doubt is None or not await committing.is_stored(doubt.writes):
                    doubt = await committing.attempt(commands, shift=self._shift(), careful=tries > 0)
                self._away_since = None
                self._shared.cache.remember_writes(doubt.writes)
                return doubt
            except Exception as error:
                self._shared.cache.forget()
                tries += 1
                if errors.is_lost(error):
                    if committing is not None and committing.doubt is not None:
                        doubt = committing.doubt
                    await self._drop(error, tries)
                elif _may_try_again(error, tries, len(commands)):
                    doubt = None
                    await self._pause(tries)
                elif errors.fails_alone(error):
                    return await self._run_one_by_one(commands, error)
                else:
                    raise errors.meaning_of(error, self._url) from error

    async def _connect(self) -> CommittingConnection:
        if self.current is not None and not self.current.connection.is_closed():
            return self.current
        connection = await connect(self._url, COMMITTING)
        try:
            await self._prepare(connection)
        except BaseException:
            connection.terminate()
            raise
        self.current = CommittingConnection(
            connection, limits=self._limits, shared=self._shared, writer=self._writer
        )
        return self.current

    async def _prepare(self, connection: Any) -> None:
        async with self._runtime.timeout(OUTAGE_SECONDS):
            if self._backend is not None:
                await end_backend(connection, self._backend, self._runtime)
            self._backend = await backend_of(connection)
            is_current = await is_migrated(connection)
        if not is_current:
            await migrate(connection)  # a large store takes its time
        await raise_positions(connection)

    async def _drop(self, error: Exception, tries: int) -> None:
        """Drop a lost connection and pause; raise when the server has been away for too long."""
        if self.current is not None:
            self.current.connection.terminate()
            self.current = None
        now = self._runtime.clock.monotonic()
        if self._away_since is None:
            self._away_since = now
            log.warning(
                "lost the connection to %s: %s; trying again", mask_url(self._url), errors.text_of(error)
            )
        if now - self._away_since > OUTAGE_SECONDS:
            raise errors.meaning_of(error, self._url) from error
        await self._pause(tries)

    async def _pause(self, tries: int) -> None:
        longest = min(_FIRST_PAUSE_SECONDS * 2**tries, _LONGEST_PAUSE_SECONDS)
        await self._runtime.sleep(longest * self._runtime.ids.fraction())

    async def _run_one_by_one(self, commands: Sequence[Command], error: Exception) -> Outcome:
        """Find the command that the database refuses, and run the others."""
        if len(commands) == 1:
            return Outcome([Reply(refusal=self._refusal_of(error))], Writes(), set())
        merged, single = Outcome([], Writes(), set()), Outcome([], Writes(), set())
        in_vain = 0
        for command in commands:
            if in_vain < BUSY_TRIES:  # a locked table would make every single one wait
                single = await self._run_alone(command)
            in_vain = in_vain + 1 if _is_busy(single) else 0
            merged.replies += single.replies
            merged.bells |= single.bells
        return merged

    async def _run_alone(self, command: Command) -> Outcome:
        try:
            return await self.run((command,))
        except StoreError as error:
            return Outcome([Reply(refusal=error)], Writes(), set())

    def _refusal_of(self, error: Exception) -> EndwellError:
        if not errors.is_refused(error):
            return errors.meaning_of(error, self._url)
        refusal = EndwellError(f"the store refused the write: {error}", code="constraint")
        refusal.__cause__ = error
        return refusal


def _may_try_again(error: Exception, tries: int, size: int) -> bool:
    if errors.is_conflict(error):
        return tries < CONFLICT_TRIES
    if errors.is_busy(error):
        return size == 1 and tries < BUSY_TRIES
    return errors.is_race(error) and tries < RACE_TRIES


def _is_busy(outcome: Outcome) -> bool:
    refusal = outcome.replies[0].refusal
    return refusal is not None and refusal.code == "store_busy"
