"""Numbered migrations: `NNNN_name.sql`, run by themselves on start, once each, in order."""

from __future__ import annotations

import re
from importlib import resources

import msgspec

from endwell.errors import StoreError


class Migration(msgspec.Struct, frozen=True):
    """One step from one schema to the next."""

    number: int
    name: str
    sql: str


def all_migrations(dialect: str) -> tuple[Migration, ...]:
    """All migrations of `sqlite` or `postgres`, in order."""
    folder = resources.files("endwell.store") / dialect / "migrations"
    found = []
    for file in folder.iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text()))
    return tuple(sorted(found, key=lambda step: step.number))


def missing_migrations(dialect: str, applied: int) -> tuple[Migration, ...]:
    """What is still to be run; a database from a newer release is refused, not touched."""
    known = all_migrations(dialect)
    newest = known[-1].number
    if applied > newest:
        raise StoreError(
            f"the store's schema is version {applied}, this release knows up to {newest}",
            code="schema_too_new",
            hint="upgrade endwell on this machine; nothing was changed",
        )
    return tuple(step for step in known if step.number > applied)
