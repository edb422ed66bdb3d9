"""Starting other processes at a test's database, and hearing what they say."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from endwell.runtime import child_process
from endwell.runtime.child_process import ChildProcess
from tests.store.world import Database, PostgresDatabase, SqliteDatabase

SCRIPT = Path(__file__).with_name("other_process.py")
PATIENCE = 600.0


def url_of(database: Database) -> str:
    if isinstance(database, PostgresDatabase):
        return database.url
    assert isinstance(database, SqliteDatabase)
    return str(database.path)


def start(database: Database, *words: str) -> ChildProcess:
    """Another process that does as these words say."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return child_process.start_process([sys.executable, str(SCRIPT), url_of(database), *words], env)


async def lines_of(child: ChildProcess) -> list[str]:
    """Everything it says until it ends; it must end well."""
    lines = []
    while (line := await asyncio.to_thread(child.read_line, PATIENCE)) is not None:
        lines.append(line)
    assert await asyncio.to_thread(child.wait, PATIENCE) == 0
    return lines
