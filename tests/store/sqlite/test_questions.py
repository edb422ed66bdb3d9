"""Short questions are answered on the asker's own event loop; that must not be to others' cost."""

from __future__ import annotations

import asyncio
from pathlib import Path

from endwell.policy.limits import Limits
from endwell.runtime.base import Runtime
from endwell.store.sqlite.store import SqliteStore


async def test_asking_in_a_tight_loop_lets_others_run(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db", limits=Limits(), runtime=Runtime.system())
    await store.open()
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(done.set)
    try:
        for _ in range(1_000):
            assert await store.find_task("default", "none") is None
            if done.is_set():
                break
        assert done.is_set()
    finally:
        await store.close()
