"""Texts about an open transaction in PostgreSQL that other processes wait for."""

from __future__ import annotations

from endwell.store.reads.log import LockHolder, LogHolder


def locks_text(holder: LockHolder) -> str:
    """Which transaction keeps other processes from writing which tables, and for how long."""
    what = f"{holder_text(holder)} has kept {holder.tables}, or rows of it, locked{age_text(holder)}"
    return f"{what}: processes that write there wait, and heartbeats and ticks may be missing for that reason"


def holder_text(holder: LogHolder) -> str:
    """The process, or the prepared transaction, that has the transaction open."""
    if holder.pid is None:
        return f"the prepared transaction {holder.prepared_as} of PostgreSQL (database {holder.database})"
    return (
        f"process {holder.pid} of PostgreSQL ({holder.application or 'nameless'}, database {holder.database})"
    )


def ending_command(holder: LogHolder) -> str:
    """The SQL that ends the transaction."""
    if holder.pid is not None:
        return f"SELECT pg_terminate_backend({holder.pid})"
    quoted = (holder.prepared_as or "").replace("'", "''")
    return f"COMMIT PREPARED '{quoted}' or ROLLBACK PREPARED '{quoted}'"


def age_text(holder: LogHolder) -> str:
    """For how long the transaction has been open, if PostgreSQL knows."""
    return "" if holder.seconds is None else f" for {holder.seconds} s"
