"""Agents in processes of their own: the same as inside the worker, except that they can be killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from endwell import AsyncHandle, Endwell, TaskFailed, UsageError
from endwell.runtime import SystemClock
from endwell.runtime.child_process import ChildProcess
from endwell.runtime.processes import pid_alive
from tests.patience import PATIENCE_SECONDS
from tests.support.outside import worker as outside_worker
from tests.support.outside.agents import Ticket
from tests.support.outside.app import ROOT, app
from tests.support.world import TINY, World, eventually, terminal


class Crew:
    """A worker process for the app in `tests.support.outside`, and a client of it here."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.workers: list[ChildProcess] = []
        world.app.agents.update(app.agents)

    def worker(self, *agents: str, settings: dict[str, object] | None = None, **options: Any) -> ChildProcess:
        url, given = self.world.app.url, {**TINY, **(settings or {})}
        worker = outside_worker.started(url, self.world.namespace, given, agents=agents, **options)
        self.workers.append(worker)
        return worker

    async def submitted(self, agent: str, payload: Any = None) -> AsyncHandle:
        return await self.world.submitted(agent, payload)

    async def error_of(self, handle: AsyncHandle) -> dict[str, Any]:
        with pytest.raises(TaskFailed) as failed:
            await handle.result(PATIENCE_SECONDS)
        error: dict[str, Any] = failed.value.deliverable["error"]
        return error

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait(PATIENCE_SECONDS)
            worker.close()


@pytest.fixture
async def crew(sqlite_url: str) -> AsyncIterator[Crew]:
    async with World(sqlite_url, settings=TINY, clock=SystemClock()) as world:
        crew = Crew(world)
        try:
            yield crew
        finally:
            crew.end()


def below(worker: ChildProcess) -> set[int]:
    """Every process that a worker has started, directly or not."""
    return {process.pid for process in psutil.Process(worker.pid).children(recursive=True)}


async def pids_in(path: Path) -> list[int]:
    await eventually(path.exists, "it says who it is")
    return [int(line) for line in path.read_text().split()]  # noqa: ASYNC240


async def gone(pids: Iterable[int]) -> None:
    watched = list(pids)
    await eventually(lambda: not any(map(pid_alive, watched)), "nothing of it is left")


async def test_payload_context_and_result_are_the_same_as_inside_the_worker(crew: Crew) -> None:
    worker = crew.worker("typed", "blocking")
    handle = await crew.submitted("typed", {"id": 7, "title": "größer"})
    said = await handle.result(PATIENCE_SECONDS)
    claimed = next(event for event in await crew.world.events(handle) if event.type == "task.claimed")
    assert said["id"] == 7
    assert said["attempt"] == claimed.attempt_id
    assert worker.pid not in (said["pid"], said["worker"])
    notes = [fact.note for fact in await crew.world.facts(handle, "task.heartbeat")]
    assert notes == ["looking at größer"]

    blocking = await crew.submitted("blocking", {"id": 1})
    assert await blocking.result(PATIENCE_SECONDS) == Ticket(2, "")
    notes = [fact.note for fact in await crew.world.facts(blocking, "task.heartbeat")]
    assert notes == ["from a thread"]
    await gone([said["pid"]])


async def test_what_an_isolated_agent_raises_is_kept_as_if_it_had_run_in_the_worker(crew: Crew) -> None:
    crew.worker("raises")
    fail = await crew.error_of(await crew.submitted("raises", "fail"))
    assert (fail["code"], fail["message"], fail["retryable"]) == ("agent_gave_up", "no use", False)
    hopeless = await crew.error_of(await crew.submitted("raises", "hopeless"))
    assert (hopeless["code"], hopeless["type"], hopeless["retryable"]) == ("exception", "Hopeless", False)
    unstorable = await crew.error_of(await crew.submitted("raises", "unstorable"))
    assert unstorable["code"] == "result_not_storable"
    value = await crew.submitted("raises", "thing")
    error = await crew.error_of(value)
    assert (error["code"], error["type"], error["message"]) == ("exception", "ValueError", "no such thing")
    assert "in raises" in error["traceback"]
    assert (await value.task()).retry_count == 3, "it was tried three times"
    later = await crew.submitted("raises", "retry")

    async def waits() -> bool:
        task = await later.task()
        return task.retry_count == 1 and task.run_at > (time.time() + 3000) * 1e6

    await eventually(waits, "it is tried again when it asked for")
    await later.cancel()


async def test_a_process_that_dies_fails_its_turn_only(crew: Crew) -> None:
    crew.worker("raises")
    left = await crew.error_of(await crew.submitted("raises", "exit"))
    assert (left["code"], left["message"]) == ("agent_died", "its process exited with code 7")
    crashed = await crew.error_of(await crew.submitted("raises", "crash"))
    assert (crashed["code"], "was killed by SIGABRT" in crashed["message"]) == ("agent_died", True)
    assert len(await (await crew.submitted("raises", "large")).result(PATIENCE_SECONDS)) == 1_000_000


@pytest.mark.parametrize(
    ("agent", "payload"),
    [("stuck", "busy"), ("stuck", "sleeps"), ("stuck", "holds-gil"), ("stuck-loop", None)],
)
async def test_a_stuck_agent_is_killed_and_its_slot_is_free_while_its_neighbour_runs_on(
    crew: Crew, tmp_path: Path, agent: str, payload: Any
) -> None:
    worker = crew.worker(agent, "neighbour", concurrency=2)
    neighbour = await crew.submitted("neighbour", str(tmp_path / "enough"))
    await crew.world.in_status(neighbour, "running")
    stuck = await crew.submitted(agent, payload)
    error = await crew.error_of(stuck)
    assert error["code"] == "agent_timeout"
    assert error["message"] == "it did not end within 1 s and was killed"
    assert await neighbour.status() == "running"
    after = await crew.submitted("neighbour", str(tmp_path))
    assert await after.result(PATIENCE_SECONDS) == worker.pid, "the slot is free again"
    (tmp_path / "enough").touch()
    assert await neighbour.result(PATIENCE_SECONDS) == worker.pid
    assert (await neighbour.task()).dispatch_count == 1, "the neighbour was not disturbed"


async def test_an_agent_over_its_memory_limit_fails_and_a_modest_one_does_not(crew: Crew) -> None:
    crew.worker("hungry")
    error = await crew.error_of(await crew.submitted("hungry", 300))
    assert (error["code"], error["type"]) == ("agent_out_of_memory", "MemoryError")
    assert error["message"] == "there was not enough memory"
    assert await (await crew.submitted("hungry", 20)).result(PATIENCE_SECONDS) == 20 * 1024 * 1024


async def test_cancelling_lets_a_coroutine_clean_up_and_ends_its_process(crew: Crew, tmp_path: Path) -> None:
    crew.worker("waiting")
    handle = await crew.submitted("waiting", str(tmp_path / "pid"))
    pids = await pids_in(tmp_path / "pid")
    await handle.cancel()
    await gone(pids)
    assert (tmp_path / "pid.cleaned").exists()
    assert terminal(await crew.world.history(handle)) == ["task.cancelled"]


@pytest.mark.parametrize("agent", ["chatty", "stepping", "chatty-program"])
async def test_a_lost_turn_is_noticed_at_its_next_sign_of_progress(
    sqlite_url: str, tmp_path: Path, agent: str
) -> None:
    """There is no ring, and the next heartbeat is far away."""
    slow: dict[str, object] = {**TINY, "worker.lease_seconds": 600, "worker.heartbeat_seconds": 200}
    world = World(sqlite_url, settings=slow, clock=SystemClock())
    world.app.is_silent = True
    async with world:
        crew = Crew(world)
        try:
            crew.worker(agent, settings=slow)
            handle = await crew.submitted(agent, str(tmp_path / "pid"))
            pids = await pids_in(tmp_path / "pid")
            await handle.cancel()
            await gone(pids)
            assert terminal(await world.history(handle)) == ["task.cancelled"]
        finally:
            crew.end()


async def test_kill_9_of_the_worker_takes_children_spares_and_programs_with_it(
    crew: Crew, tmp_path: Path
) -> None:
    worker = crew.worker("waiting", "patient")
    await crew.submitted("waiting", str(tmp_path / "pid"))
    await crew.submitted("patient", str(tmp_path / "pids"))
    pids = {*await pids_in(tmp_path / "pid"), *await pids_in(tmp_path / "pids"), *below(worker)}
    assert len(pids) >= 4
    assert all(map(pid_alive, pids))
    os.kill(worker.pid, 9)
    await gone(pids)


async def test_a_drained_worker_leaves_no_process_behind(crew: Crew, tmp_path: Path) -> None:
    worker = crew.worker("waiting", "patient")
    waiting = await crew.submitted("waiting", str(tmp_path / "pid"))
    await crew.submitted("patient", str(tmp_path / "pids"))
    pids = {*await pids_in(tmp_path / "pid"), *await pids_in(tmp_path / "pids"), *below(worker)}
    worker.terminate()
    assert await asyncio.get_running_loop().run_in_executor(None, worker.wait, PATIENCE_SECONDS) == 0
    await gone(pids)
    assert (await waiting.task()).status == "queued", "it was handed back"


async def test_a_killed_warden_takes_the_program_with_it_and_the_turn_fails(
    crew: Crew, tmp_path: Path
) -> None:
    crew.worker("patient")
    handle = await crew.submitted("patient", str(tmp_path / "pids"))
    program, same, away = await pids_in(tmp_path / "pids")
    try:
        os.kill(psutil.Process(program).ppid(), 9)
        assert (await crew.error_of(handle))["code"] == "program_failed"
        await gone([program, same])
    finally:
        os.kill(away, 9)  # only the warden could have reached it


async def test_a_limit_holds_although_the_worker_is_frozen(crew: Crew, tmp_path: Path) -> None:
    worker = crew.worker("short")
    await crew.submitted("short", str(tmp_path / "pids"))
    pids = await pids_in(tmp_path / "pids")
    os.kill(worker.pid, 19)  # SIGSTOP
    await gone(pids)


async def test_a_turn_gets_the_spare_child_that_has_loaded_the_app(crew: Crew) -> None:
    crew.worker("loaded")
    submitted_at = time.time()
    assert await (await crew.submitted("loaded")).result(PATIENCE_SECONDS) < submitted_at
    assert await (await crew.submitted("loaded")).result(PATIENCE_SECONDS) > submitted_at, (
        "one child, one turn"
    )


async def test_a_spare_that_was_killed_is_replaced(crew: Crew) -> None:
    worker = crew.worker("loaded")
    spare = below(worker)
    for pid in spare:
        os.kill(pid, 9)
    await gone(spare)
    assert await (await crew.submitted("loaded")).result(PATIENCE_SECONDS) > 0


SCRIPT = """
import sys
from endwell import Endwell

def made():
    app = Endwell("sqlite:///endwell.db")

    @app.agent("lonely", isolation="process")
    def lonely(x: int) -> int:
        return x

    return app

GLOBAL
def main(app):
    with app.running():
        print(app.submit("lonely", 5).result())
"""


def run_script(directory: Path, top: str, end: str, interactive: bool = False) -> tuple[int, str, str]:
    text = SCRIPT.replace("GLOBAL", top) + end
    (directory / "script.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-" if interactive else "script.py"],
        input=text if interactive else "",
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


GUARDED = 'if __name__ == "__main__":\n    main(app)\n'


def test_the_app_may_be_in_the_script_itself(tmp_path: Path) -> None:
    assert run_script(tmp_path, "app = made()", GUARDED)[:2] == (0, "5\n")


@pytest.mark.parametrize(
    ("top", "end", "interactive", "problem"),
    [
        ("", "main(made())\n", False, "another process cannot find the app of agent 'lonely'"),
        ("app = made()", GUARDED, True, "agent 'lonely' was defined interactively"),
        ("app = made()", "main(app)\n", False, "a worker was started while the script was loaded"),
        (
            'app = made() if __name__ == "__main__" else Endwell()',
            GUARDED,
            False,
            "loading the app does not register an agent 'lonely'",
        ),
    ],
)
def test_an_app_that_another_process_cannot_load_is_refused_when_the_worker_starts(
    tmp_path: Path, top: str, end: str, interactive: bool, problem: str
) -> None:
    code, out, err = run_script(tmp_path, top, end, interactive)
    assert (code, out) == (1, "")
    assert "UsageError" in err
    assert problem in err


@pytest.mark.parametrize(
    "options",
    [
        {"isolation": "thread"},
        {"timeout": 5},
        {"memory_mb": 5},
        {"isolation": "process", "timeout": -1},
        {"isolation": "process", "memory_mb": True},
    ],
)
def test_limits_that_could_not_be_kept_are_refused_at_registration(sqlite_url: str, options: Any) -> None:
    with pytest.raises(UsageError):
        Endwell(sqlite_url).agent("program", **options)
