"""Doctor and why name a stopped process that holds SQLite's write lock."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from endwell.operate.doctor.examine import examine
from endwell.operate.doctor.finding import Patient
from endwell.operate.why import WhyPace, why
from tests.support.world import World

HOLDER = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


async def test_doctor_and_why_name_the_process_that_holds_the_write_lock(tmp_path: Path) -> None:
    path = tmp_path / "endwell.db"
    async with World(f"sqlite:///{path}", settings={"worker.heartbeat_seconds": 10}) as world:

        @world.app.agent("clerk")
        async def clerk() -> None: ...

        await world.started_worker()
        pmo = await world.supervisor()
        await pmo.run_once()
        handle = await world.submitted("clerk")
        holder = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HOLDER, str(path), stdin=-1, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert holder.stdout is not None
            assert await holder.stdout.readline() == b"held\n"
            world.clock.advance(120)  # every lease has lapsed, and no tick can be written
            await is_named(world, handle.id, holder.pid)
        finally:
            holder.kill()
            await holder.wait()


async def is_named(world: World, task_id: str, pid: int) -> None:
    facts = await world.store.settings()
    patient = Patient(
        store=world.store,
        settings=world.app.settings,
        namespaces=(world.namespace,),
        bell=world.node.bell.health(),
        clock=world.clock,
        facts=facts,
    )
    report = await examine(patient)
    found = {finding["code"]: finding for finding in report["findings"]}
    assert found["write_lock_held"]["facts"]["pid"] == pid
    assert not {"no_supervisor", "no_live_worker", "worker_lapsed"} & set(found)
    answer = await why(world.store, world.namespace, task_id, pace=WhyPace.from_settings(world.app.settings))
    assert len(answer["notes"]) == 1
    assert f"process {pid} holds SQLite's write lock" in answer["notes"][0]
