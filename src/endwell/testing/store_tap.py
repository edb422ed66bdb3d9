"""A tap between a simulated process and its database: it sees each transaction, and may break it.

The database is a real SQLite file and the statements are the product's own. The tap simulates what goes wrong
around them: the file is busy, the disk is full, the answer of a commit is lost, the process dies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import apsw

from endwell.model.commands import Command
from endwell.policy.limits import Limits
from endwell.runtime.base import Runtime
from endwell.store.contract import Ring
from endwell.store.rows import Outcome
from endwell.store.sqlite.driver import SqliteDriver
from endwell.store.sqlite.store import SqliteStore

Moment = Literal["begin", "commit", "committed", "read"]


class KilledError(BaseException):
    """The process has been killed: its code ends here."""


class Tap(Protocol):
    """The listener of a tap. What it raises takes the place of the database's own error."""

    @property
    def is_dead(self) -> bool: ...

    def on_transaction(self, moment: Moment, commands: Sequence[Command]) -> None: ...


class TappedConnection:
    """A connection whose transactions the tap sees."""

    def __init__(self, real: apsw.Connection, tap: Tap) -> None:
        self._real = real
        self._tap = tap
        self.commands: Sequence[Command] = ()
        self.executemany = real.executemany
        self.total_changes = real.total_changes
        self.wal_checkpoint = real.wal_checkpoint
        self._execute = real.execute

    def execute(self, sql: str, *bindings: Any) -> Any:
        tap = self._tap
        if tap.is_dead:
            raise KilledError
        if sql == "BEGIN IMMEDIATE":
            tap.on_transaction("begin", self.commands)
        elif sql == "COMMIT":
            tap.on_transaction("commit", self.commands)
            result = self._execute(sql)
            tap.on_transaction("committed", self.commands)
            return result
        elif not self._real.in_transaction:
            tap.on_transaction("read", ())
        return self._execute(sql, *bindings)

    @property
    def in_transaction(self) -> bool:
        return self._real.in_transaction

    def close(self) -> None:
        self._real.close()

    def cut_off(self) -> None:
        """Close it as the kernel does when its process is killed."""
        with suppress(apsw.Error):
            if self._real.in_transaction:
                self._real.execute("ROLLBACK")
            self._real.close(True)


class TappedDriver(SqliteDriver):
    """The SQLite driver on a tapped connection."""

    def __init__(
        self, path: Path, tap: Tap, *, limits: Limits, now: Callable[[], int], pause: Callable[[int], bool]
    ) -> None:
        super().__init__(path, limits=limits, now=now, pause=pause)
        self.tapped = TappedConnection(self._connection, tap)
        self._connection = cast(apsw.Connection, self.tapped)

    def run(self, commands: Sequence[Command], *, at_once: bool = False) -> Outcome:
        self.tapped.commands = commands
        return super().run(commands, at_once=at_once)


class TappedStore(SqliteStore):
    """The SQLite store with tapped drivers."""

    def __init__(
        self, path: Path, tap: Tap, *, limits: Limits, runtime: Runtime, ring: Ring | None = None
    ) -> None:
        super().__init__(path, limits=limits, runtime=runtime, ring=ring)
        self._tap = tap
        self.drivers: list[TappedDriver] = []

    def _connect(self) -> SqliteDriver:
        now = self._runtime.clock.now_us
        driver = TappedDriver(self._path, self._tap, limits=self._limits, now=now, pause=self._pause)
        self.drivers.append(driver)
        return driver

    def cut_off(self) -> None:
        """Close every connection, as a kill does."""
        for driver in self.drivers:
            driver.tapped.cut_off()
