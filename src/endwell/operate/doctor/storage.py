"""Checks of the store: its schema, its version and settings, its integrity, its disk, its clock."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from typing import Any, Final

from endwell.model.moments import SECOND, moment
from endwell.model.session import Session
from endwell.operate.doctor.finding import Finding, Patient, error_of, warn_of
from endwell.operate.lock_holders import age_text, ending_command, holder_text, locks_text
from endwell.runtime.processes import processes_without_locks
from endwell.store.migrations import all_migrations
from endwell.store.reads.log import LockHolder, LogHolder

OLDEST_SQLITE: Final = (3, 51, 3)
"""Before this, two connections that write at once could damage a file with a write-ahead log."""
FULL: Final = 2
SKEW_SECONDS: Final = 1.0
DANGEROUS_SKEW_SECONDS: Final = 10.0
IDLE_SECONDS = 60.0
"""Seconds that a transaction may be open without doing anything."""
HELD_BACK_SECONDS = 5.0
"""Seconds that a transaction which wrote events may stay open; relay and tail wait for it."""
_CHANGE: Final = re.compile(
    r"CREATE TABLE (?P<table>\w+)|CREATE (?:UNIQUE )?INDEX (?P<index>\w+)\s+ON (?P<on>\w+)"
    r"|CREATE TRIGGER (?P<trigger>\w+) BEFORE INSERT ON (?P<of>\w+)"
    r"|DROP (?:TABLE|INDEX) (?P<gone>\w+)|ALTER TABLE (?P<old>\w+) RENAME TO (?P<new>\w+)"
)


async def check_schema(patient: Patient) -> list[Finding]:
    """Every table, index and trigger of the migrations exists."""
    dialect = "sqlite" if patient.facts["store"] == "sqlite" else "postgres"
    wanted = wanted_objects("\n".join(step.sql for step in all_migrations(dialect)))
    missing = sorted(wanted - set(await patient.store.schema_objects()))
    if not missing:
        return []
    return [
        error_of(
            "schema_incomplete",
            f"the schema lacks {', '.join(missing)}, which the migrations had made",
            "restore a backup, or export the events and import them into a new store",
            missing=missing,
        )
    ]


def wanted_objects(sql: str) -> set[str]:
    """The tables, indexes and triggers after these statements; dropping a table drops its own."""
    table_of: dict[str, str] = {}
    for change in _CHANGE.finditer(sql):
        if table := change["table"]:
            table_of[table] = table
        elif index := change["index"]:
            table_of[index] = change["on"]
        elif trigger := change["trigger"]:
            table_of[trigger] = change["of"]
        elif gone := change["gone"]:
            table_of = {name: table for name, table in table_of.items() if gone not in (name, table)}
        else:
            old, new = change["old"], change["new"]
            renamed = {name: new if table == old else table for name, table in table_of.items()}
            table_of = {new if name == old else name: table for name, table in renamed.items()}
    return set(table_of)


async def check_database(patient: Patient) -> list[Finding]:
    """The database's version, and whether its commits are durable."""
    if patient.facts["store"] == "sqlite":
        return [*sqlite_settings(patient.facts), *await _write_lock(patient), *_lost_locks(patient)]
    return [
        *postgres_settings(patient.facts),
        *await _idle_transactions(patient),
        *await _log_holders(patient),
        *[locks_held(holder) for holder in await patient.store.lock_holders()],
    ]


async def _write_lock(patient: Patient) -> list[Finding]:
    """No process was stopped inside a commit: it would keep all others from writing."""
    pid = patient.facts.get("blocked_by")
    if pid is None:
        return []
    last = max((session.heartbeat_at for session in await _open_sessions(patient)), default=None)
    since = "" if last is None else f"; the last heartbeat was stored at {moment(last)}"
    return [
        error_of(
            "write_lock_held",
            f"process {pid} holds SQLite's write lock{since}, and all others wait for it",
            f"continue it (kill -CONT {pid}) or end it (kill -KILL {pid}): its commit is rolled back",
            pid=pid,
            since=None if last is None else moment(last),
        )
    ]


def _lost_locks(patient: Patient) -> list[Finding]:
    """No process has lost SQLite's lock by opening and closing the file once more beside Endwell."""
    if patient.path is None:
        return []
    path = patient.path.resolve()
    return [
        error_of(
            "locks_lost",
            f"process {pid} has {patient.path.name} open, but no longer holds SQLite's lock on it: "
            "other processes may damage what it writes",
            f"restart process {pid}, and do not open the file with a second SQLite library (Python's "
            "sqlite3) in a process that runs Endwell; then run endwell events verify",
            pid=pid,
        )
        for pid in processes_without_locks(path, path.with_name(f"{path.name}-wal"))
    ]


async def _open_sessions(patient: Patient) -> list[Session]:
    return [session for name in patient.namespaces for session in await patient.store.open_sessions(name)]


async def _idle_transactions(patient: Patient) -> list[Finding]:
    """No idle transaction keeps old rows from being vacuumed, which every claim would read past."""
    return [
        warn_of(
            "idle_in_transaction",
            f"process {pid} of PostgreSQL ({name or 'nameless'}) has been idle in an open transaction "
            f"for {seconds} s: old rows pile up, and claims get slower",
            f"SELECT pg_terminate_backend({pid}), and set idle_in_transaction_session_timeout",
            pid=pid,
            name=name,
            seconds=seconds,
        )
        for pid, name, seconds in await patient.store.idle_transactions(IDLE_SECONDS)
    ]


async def _log_holders(patient: Patient) -> list[Finding]:
    """No open transaction keeps followers of the log from reading on; a commit takes milliseconds."""
    return [log_held_back(holder) for holder in await patient.store.log_holders(HELD_BACK_SECONDS)]


def log_held_back(holder: LogHolder) -> Finding:
    """The finding for a transaction that wrote events and stays open."""
    return error_of(
        "log_held_back",
        f"{holder_text(holder)} wrote events and has kept its transaction open{age_text(holder)}: "
        "relay and tail wait for it",
        ending_command(holder),
        **_holder_facts(holder),
    )


def locks_held(holder: LockHolder) -> Finding:
    """The finding for a transaction that keeps other processes from writing."""
    tables = holder.tables.split(", ")
    return error_of(
        "locks_held", locks_text(holder), ending_command(holder), **_holder_facts(holder), tables=tables
    )


def _holder_facts(holder: LogHolder) -> dict[str, Any]:
    return {
        "pid": holder.pid,
        "name": holder.application,
        "seconds": holder.seconds,
        "database": holder.database,
        "prepared_as": holder.prepared_as,
    }


def sqlite_settings(facts: Mapping[str, Any]) -> list[Finding]:
    """Full durability, and a version in which concurrent writers are safe."""
    found = []
    version = tuple(int(part) for part in str(facts["sqlite_version"]).split("."))
    if version < OLDEST_SQLITE:
        problem = f"SQLite {facts['sqlite_version']} can damage a file that several processes write"
        found.append(error_of("sqlite_too_old", problem, "pip install --upgrade apsw"))
    if facts["journal_mode"] != "wal" or facts["synchronous"] != FULL:
        problem = (
            f"journal_mode={facts['journal_mode']}, synchronous={facts['synchronous']}: "
            "a power failure may lose committed work"
        )
        found.append(error_of("sqlite_unsafe", problem, "let only Endwell open the file, on a local disk"))
    return found


def postgres_settings(facts: Mapping[str, Any]) -> list[Finding]:
    """The settings of PostgreSQL that make a commit durable are on."""
    off = [name for name in ("fsync", "synchronous_commit", "full_page_writes") if facts[name] == "off"]
    if not off:
        return []
    problem = f"the server runs with {', '.join(off)} off: a crash may lose committed work"
    return [
        error_of("postgres_unsafe", problem, "switch it on in postgresql.conf and reload the server", off=off)
    ]


async def check_integrity(patient: Patient) -> list[Finding]:
    """The database's own check of its file passes."""
    wrong = await patient.store.integrity_faults()
    if not wrong:
        return []
    remedy = "stop everything, keep a copy, restore a backup, then `endwell events verify`"
    return [error_of("store_damaged", f"the store is damaged: {wrong[0]}", remedy, problems=wrong)]


async def check_disk(patient: Patient) -> list[Finding]:
    """The disk of the store's file has room; a server's disk cannot be seen from here."""
    if patient.path is None:
        return []
    free = shutil.disk_usage(patient.path.parent).free
    if free >= patient.least_free_bytes:
        return []
    finding = error_of if free < patient.least_free_bytes // 4 else warn_of
    problem = f"only {free // 1_000_000} MB are free on the store's disk"
    return [finding("disk_low", problem, "free some space; a full disk refuses new tasks", free_bytes=free)]


async def check_clock(patient: Patient) -> list[Finding]:
    """This machine's clock agrees with the store's, and neither is behind the record."""
    ours, theirs = patient.clock.now_us(), await patient.store.now()
    skew = (ours - theirs) / SECOND
    found = []
    if abs(skew) > SKEW_SECONDS:
        problem = f"this machine's clock differs from the store's by {skew:+.1f} s"
        remedy = "keep the clocks of all machines in step with NTP"
        found.append(_by_size(skew)("clock_skew", problem, remedy, seconds=round(skew, 3)))
    for namespace in patient.namespaces:
        latest = await patient.store.latest_moment(namespace)
        ahead = 0.0 if latest is None else (latest - theirs) / SECOND
        if ahead > SKEW_SECONDS:
            found.append(
                _by_size(ahead)(
                    "clock_behind",
                    f"the clock is {ahead:.1f} s behind the newest event: it was set back, or another "
                    "machine's clock is ahead",
                    "set the clock right; until it has caught up, leases and deadlines last that much longer",
                    namespace=namespace,
                    seconds=round(ahead, 3),
                )
            )
    return found


def _by_size(seconds: float) -> Callable[..., Finding]:
    return error_of if abs(seconds) > DANGEROUS_SKEW_SECONDS else warn_of
