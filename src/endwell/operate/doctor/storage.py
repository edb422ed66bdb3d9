"""The store itself: its schema, its version and settings, whether it is whole, its disk, its clock."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from typing import Any, Final

from endwell.model.moments import moment
from endwell.operate.doctor.finding import Finding, Patient
from endwell.operate.holders import age, ending, locks, named
from endwell.policy.limits import SECOND
from endwell.runtime.processes import has_lost_locks, host_name
from endwell.store.migrations import migrations
from endwell.store.positions import LockHolder, LogHolder

OLDEST_SQLITE: Final = (3, 51, 3)
"""Before this, two connections that write at once could damage a file with a write-ahead log."""
FULL: Final = 2
SKEW_SECONDS: Final = 1.0
DANGEROUS_SKEW_SECONDS: Final = 10.0
IDLE_SECONDS = 60.0
"""How long a transaction may be left open by somebody who does nothing in it."""
HELD_BACK_SECONDS = 5.0
"""How long a transaction that wrote events may stay open; relay and tail wait for it."""
_CHANGE: Final = re.compile(
    r"CREATE TABLE (?P<table>\w+)|CREATE (?:UNIQUE )?INDEX (?P<index>\w+)\s+ON (?P<on>\w+)"
    r"|CREATE TRIGGER (?P<trigger>\w+) BEFORE INSERT ON (?P<of>\w+)"
    r"|DROP (?:TABLE|INDEX) (?P<gone>\w+)|ALTER TABLE (?P<old>\w+) RENAME TO (?P<new>\w+)"
)


async def schema(patient: Patient) -> list[Finding]:
    """Every table, index and trigger that the migrations made is there."""
    dialect = "sqlite" if patient.facts["store"] == "sqlite" else "postgres"
    wanted = wanted_objects("\n".join(step.sql for step in migrations(dialect)))
    missing = sorted(wanted - set(await patient.store.schema_objects()))
    if not missing:
        return []
    return [
        Finding(
            code="schema_incomplete",
            severity="error",
            message=f"the schema lacks {', '.join(missing)}",
            remedy="somebody dropped it: restore a backup, or export the events and import them elsewhere",
            facts={"missing": missing},
        )
    ]


def wanted_objects(sql: str) -> set[str]:
    """The tables, indexes and triggers after these statements; a table takes the others with it."""
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


async def database(patient: Patient) -> list[Finding]:
    """Its version and what it promises when it says that something is stored."""
    if patient.facts["store"] == "sqlite":
        return [*sqlite_settings(patient.facts), *await _write_lock(patient), *await _lost_locks(patient)]
    return [
        *postgres_settings(patient.facts),
        *await _idle_transactions(patient),
        *await _log_holders(patient),
        *[locking(one) for one in await patient.store.lock_holders()],
    ]


async def _write_lock(patient: Patient) -> list[Finding]:
    """A process that was stopped inside a commit keeps every other from writing: nothing else is wrong."""
    pid = patient.facts.get("blocked_by")
    if pid is None:
        return []
    sessions = [s for name in patient.namespaces for s in await patient.store.open_sessions(name)]
    last = max((session.heartbeat_at for session in sessions), default=None)
    since = "" if last is None else f"; nothing was written since {moment(last)}"
    return [
        Finding(
            code="write_lock_held",
            severity="error",
            message=f"process {pid} holds SQLite's write lock{since}, and all others wait for it",
            remedy=f"let it go on (kill -CONT {pid}) or end it (kill -KILL {pid}): its commit is rolled back",
            facts={"pid": pid, "since": None if last is None else moment(last)},
        )
    ]


async def _lost_locks(patient: Patient) -> list[Finding]:
    """SQLite holds a lock for as long as it has the file open; closing the file once more drops it."""
    if patient.path is None:
        return []
    sessions = [s for name in patient.namespaces for s in await patient.store.open_sessions(name)]
    here = sorted({session.pid for session in sessions if session.host == host_name()})
    return [
        Finding(
            code="locks_lost",
            severity="error",
            message=f"process {pid} has {patient.path.name} open, but no longer holds SQLite's lock on it: "
            "other processes may damage what it writes",
            remedy=f"restart process {pid}, and do not open the file with a second SQLite library (Python's "
            "sqlite3) in a process that runs Endwell; then run endwell events verify",
            facts={"pid": pid},
        )
        for pid in here
        if has_lost_locks(pid, patient.path)
    ]


async def _idle_transactions(patient: Patient) -> list[Finding]:
    """Until one ends, no row that was changed since can be cleared away, and every claim reads past them."""
    return [
        Finding(
            code="idle_in_transaction",
            severity="warning",
            message=f"process {pid} of PostgreSQL ({name or 'nameless'}) has sat in an open transaction "
            f"for {seconds} s: old rows pile up, and claims get slower",
            remedy=f"SELECT pg_terminate_backend({pid}), and set idle_in_transaction_session_timeout",
            facts={"pid": pid, "name": name, "seconds": seconds},
        )
        for pid, name, seconds in await patient.store.idle_transactions(IDLE_SECONDS)
    ]


async def _log_holders(patient: Patient) -> list[Finding]:
    """A commit takes milliseconds; a writer of events that stays open keeps later events from followers."""
    return [holding(one) for one in await patient.store.log_holders(HELD_BACK_SECONDS)]


def holding(one: LogHolder) -> Finding:
    """What the doctor says of a writer of events that stays open."""
    return Finding(
        code="log_held_back",
        severity="error",
        message=f"{named(one)} wrote events and has kept its transaction open{age(one)}: "
        "relay and tail wait for it",
        remedy=ending(one),
        facts=_facts(one),
    )


def locking(one: LockHolder) -> Finding:
    """What the doctor says of a transaction that keeps others from writing."""
    return Finding(
        code="locks_held",
        severity="error",
        message=locks(one),
        remedy=ending(one),
        facts={**_facts(one), "tables": one.tables.split(", ")},
    )


def _facts(one: LogHolder) -> dict[str, Any]:
    return {
        "pid": one.pid,
        "name": one.application,
        "seconds": one.seconds,
        "database": one.database,
        "prepared_as": one.prepared_as,
    }


def sqlite_settings(facts: Mapping[str, Any]) -> list[Finding]:
    """Full durability, and a version in which concurrent writers are safe."""
    found = []
    version = tuple(int(part) for part in str(facts["sqlite_version"]).split("."))
    if version < OLDEST_SQLITE:
        found.append(
            Finding(
                code="sqlite_too_old",
                severity="error",
                message=f"SQLite {facts['sqlite_version']} can damage a file that several processes write",
                remedy="pip install --upgrade apsw",
            )
        )
    if facts["journal_mode"] != "wal" or facts["synchronous"] != FULL:
        found.append(
            Finding(
                code="sqlite_unsafe",
                severity="error",
                message=f"journal_mode={facts['journal_mode']}, synchronous={facts['synchronous']}: "
                "what is committed may be lost with the power",
                remedy="let only Endwell open the file, on a local disk",
            )
        )
    return found


def postgres_settings(facts: Mapping[str, Any]) -> list[Finding]:
    """Whatever is switched off here makes a commit a hope."""
    off = [name for name in ("fsync", "synchronous_commit", "full_page_writes") if facts[name] == "off"]
    if not off:
        return []
    return [
        Finding(
            code="postgres_unsafe",
            severity="error",
            message=f"the server runs with {', '.join(off)} off: what is committed may be lost",
            remedy="switch it on in postgresql.conf and reload the server",
            facts={"off": off},
        )
    ]


async def integrity(patient: Patient) -> list[Finding]:
    """The database's own check of its file."""
    wrong = await patient.store.integrity()
    if not wrong:
        return []
    return [
        Finding(
            code="store_damaged",
            severity="error",
            message=f"the store is damaged: {wrong[0]}",
            remedy="stop everything, keep a copy, restore a backup, then `endwell events verify`",
            facts={"problems": wrong},
        )
    ]


async def disk(patient: Patient) -> list[Finding]:
    """Room for the store's file; a server's disk cannot be seen from here."""
    if patient.path is None:
        return []
    free = shutil.disk_usage(patient.path.parent).free
    if free >= patient.least_free_bytes:
        return []
    return [
        Finding(
            code="disk_low",
            severity="error" if free < patient.least_free_bytes // 4 else "warning",
            message=f"{free // 1_000_000} MB are free where the store is",
            remedy="free some space; when the disk is full nothing new is accepted",
            facts={"free_bytes": free},
        )
    ]


async def clock(patient: Patient) -> list[Finding]:
    """This machine's clock against the store's, and against what the record already knows."""
    ours, theirs = patient.clock.now_us(), await patient.store.now()
    skew = (ours - theirs) / SECOND
    found = []
    if abs(skew) > SKEW_SECONDS:
        found.append(
            Finding(
                code="clock_skew",
                severity="error" if abs(skew) > DANGEROUS_SKEW_SECONDS else "warning",
                message=f"this machine's clock is {skew:+.1f} s off the store's",
                remedy="keep the clocks of all machines in step with NTP",
                facts={"seconds": round(skew, 3)},
            )
        )
    for namespace in patient.namespaces:
        latest = await patient.store.latest_moment(namespace)
        ahead = 0.0 if latest is None else (latest - theirs) / SECOND
        if ahead > SKEW_SECONDS:
            found.append(_behind(namespace, ahead))
    return found


def _behind(namespace: str, ahead: float) -> Finding:
    return Finding(
        code="clock_behind",
        severity="error" if ahead > DANGEROUS_SKEW_SECONDS else "warning",
        message=f"the record is {ahead:.1f} s ahead of the clock: it was set back, or another is ahead",
        remedy="set the clock right; until it has caught up, leases and deadlines last that much longer",
        namespace=namespace,
        facts={"seconds": round(ahead, 3)},
    )
