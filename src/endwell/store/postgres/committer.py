"""Runs batches until they are settled: reconnects, tries again, finds out; one bad command fails alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from endwell.errors import EndwellError, StoreError
from endwell.model.commands import Command
from endwell.policy.limits import Limits
from endwell.runtime.base import Runtime
from endwell.settings import masked
from endwell.store.claim_position import ClaimPosition
from endwell.store.postgres import errors
from endwell.store.postgres.connection import (
    COMMITTING,
    Backend,
    backend_of,
    bury,
    connect,
    is_migrated,
    migrate,
    raise_positions,
)
from endwell.store.postgres.driver import PostgresDriver, ServerClock
from endwell.store.row_cache import RowCache
from endwell.store.rows import Outcome, Reply, Writes

OUTAGE_SECONDS = 5.0
"""How long callers wait for a server that is away before they are told."""
CONFLICT_TRIES = 12
"""How often a batch is tried that stands in others' way."""
RACE_TRIES = 3
"""How often a batch is decided that others were ahead of; the second time it holds its rows' locks."""
BUSY_TRIES = 2
"""How often a single command waits for a lock, and how many may do so in vain before the rest is told."""
CLOSE_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 0.5

log = logging.getLogger(__name__)


class Committer:
    """One committing connection, made anew when it is lost."""

    def __init__(
        self,
        url: str,
        *,
        limits: Limits,
        runtime: Runtime,
        shift: Callable[[], int],
        held: RowCache,
        reached: ClaimPosition,
        server: ServerClock,
    ) -> None:
        self._url = url
        self._held = held
        self._reached = reached
        self._server = server
        self._limits = limits
        self._runtime = runtime
        self._shift = shift
        self._writer = runtime.ids.new()
        self._driver: PostgresDriver | None = None
        self._backend: Backend | None = None
        self._away_since: float | None = None

    async def open(self) -> None:
        """Connect and bring the schema up to date; a server that is just starting is waited for."""
        tries = 0
        while True:
            try:
                await self._connected()
                return
            except Exception as error:
                tries += 1
                if not errors.is_starting(error):
                    raise errors.meaning_of(error, self._url) from error
                await self._lose(error, tries)

    async def close(self) -> None:
        """Say goodbye to the server."""
        driver, self._driver = self._driver, None
        if driver is None:
            return
        try:
            await driver.connection.close(timeout=CLOSE_SECONDS)
        except Exception:
            driver.connection.terminate()

    async def run(self, commands: Sequence[Command]) -> Outcome:
        """One transaction for all of them; if the database refuses it, each gets one of its own.

        When the connection breaks while the last statement is under way, nobody knows whether it took
        place: the next connection looks, and what did take place is not done again.
        """
        doubt: Outcome | None = None
        tries = 0
        while True:
            driver: PostgresDriver | None = None
            try:
                driver = await self._connected()
                if doubt is None or not await driver.is_stored(doubt.writes):
                    doubt = await driver.attempt(commands, shift=self._shift(), careful=tries > 0)
                self._away_since = None
                self._held.note(doubt.writes)
                return doubt
            except Exception as error:
                self._held.forget()
                tries += 1
                if errors.is_lost(error):
                    doubt = driver.doubt if driver is not None and driver.doubt is not None else doubt
                    await self._lose(error, tries)
                elif _may_try_again(error, tries, len(commands)):
                    doubt = None
                    await self._pause(tries)
                elif errors.fails_alone(error):
                    return await self._one_by_one(commands, error)
                else:
                    raise errors.meaning_of(error, self._url) from error

    async def _connected(self) -> PostgresDriver:
        if self._driver is not None and not self._driver.connection.is_closed():
            return self._driver
        connection = await connect(self._url, COMMITTING)
        try:
            await self._prepare(connection)
        except BaseException:
            connection.terminate()
            raise
        self._driver = PostgresDriver(
            connection,
            limits=self._limits,
            server=self._server,
            held=self._held,
            reached=self._reached,
            writer=self._writer,
        )
        return self._driver

    async def _prepare(self, connection: Any) -> None:
        async with self._runtime.timeout(OUTAGE_SECONDS):
            if self._backend is not None:
                await bury(connection, self._backend, self._runtime)
            self._backend = await backend_of(connection)
            is_current = await is_migrated(connection)
        if not is_current:
            await migrate(connection)  # a large store takes its time
        await raise_positions(connection)

    async def _lose(self, error: Exception, tries: int) -> None:
        """Let go of the connection; wait a little, or tell the callers when the server is away for long."""
        if self._driver is not None:
            self._driver.connection.terminate()
            self._driver = None
        now = self._runtime.clock.monotonic()
        if self._away_since is None:
            self._away_since = now
            log.warning(
                "lost the connection to %s: %s; trying again", masked(self._url), errors.said_by(error)
            )
        if now - self._away_since > OUTAGE_SECONDS:
            raise errors.meaning_of(error, self._url) from error
        await self._pause(tries)

    async def _pause(self, tries: int) -> None:
        longest = min(_FIRST_PAUSE_SECONDS * 2**tries, _LONGEST_PAUSE_SECONDS)
        await self._runtime.sleep(longest * self._runtime.ids.fraction())

    async def _one_by_one(self, commands: Sequence[Command], error: Exception) -> Outcome:
        """Find the command that the database refuses; its neighbours are not to suffer."""
        if len(commands) == 1:
            return Outcome([Reply(refusal=self._refusal(error))], Writes(), set())
        merged, single = Outcome([], Writes(), set()), Outcome([], Writes(), set())
        in_vain = 0
        for command in commands:
            if in_vain < BUSY_TRIES:  # a locked table would make every single one wait
                single = await self._alone(command)
            in_vain = in_vain + 1 if _is_busy(single) else 0
            merged.replies += single.replies
            merged.bells |= single.bells
        return merged

    async def _alone(self, command: Command) -> Outcome:
        try:
            return await self.run((command,))
        except StoreError as error:
            return Outcome([Reply(refusal=error)], Writes(), set())

    def _refusal(self, error: Exception) -> EndwellError:
        if errors.is_refused(error):
            refusal = EndwellError(f"the store refused the write: {error}", code="constraint")
            refusal.__cause__ = error
            return refusal
        return errors.meaning_of(error, self._url)


def _may_try_again(error: Exception, tries: int, size: int) -> bool:
    if errors.is_conflict(error):
        return tries < CONFLICT_TRIES
    if errors.is_busy(error):
        return size == 1 and tries < BUSY_TRIES
    return errors.is_race(error) and tries < RACE_TRIES


def _is_busy(outcome: Outcome) -> bool:
    refusal = outcome.replies[0].refusal
    return refusal is not None and refusal.code == "store_busy"
