"""What a person is told of an open transaction in PostgreSQL that others wait for."""

from __future__ import annotations

from endwell.store.positions import LockHolder, LogHolder


def locks(one: LockHolder) -> str:
    """Who keeps others from writing what, and for how long."""
    what = f"{named(one)} has kept {one.tables}, or rows of it, locked{age(one)}"
    return f"{what}: whoever must write there waits, and signs of life may be missing for that reason"


def named(one: LogHolder) -> str:
    """Who has the transaction open."""
    if one.pid is None:
        return f"the prepared transaction {one.prepared_as} of PostgreSQL (database {one.database})"
    return f"process {one.pid} of PostgreSQL ({one.application or 'nameless'}, database {one.database})"


def ending(one: LogHolder) -> str:
    """How a person ends the transaction."""
    if one.pid is not None:
        return f"SELECT pg_terminate_backend({one.pid})"
    quoted = (one.prepared_as or "").replace("'", "''")
    return f"COMMIT PREPARED '{quoted}' or ROLLBACK PREPARED '{quoted}'"


def age(one: LogHolder) -> str:
    """For how long, if PostgreSQL says so."""
    return "" if one.seconds is None else f" for {one.seconds} s"
