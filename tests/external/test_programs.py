"""Agents that are programs: what they may say, how they may fail, and that nothing of them stays behind."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from endwell import AsyncHandle, Endwell, TaskFailed, UsageError
from endwell.external import programs
from endwell.runtime import SystemClock
from endwell.runtime.processes import pid_alive
from tests.patience import PATIENCE_SECONDS
from tests.support.outside.programs import PATIENT
from tests.support.world import World, eventually, terminal

PYTHON = [sys.executable, "-I", "-S", "-c"]


def shell(line: str) -> list[str]:
    return ["sh", "-c", line]


async def error_of(handle: AsyncHandle) -> dict[str, Any]:
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    error: dict[str, Any] = failed.value.deliverable["error"]
    return error


async def error_from(world: World, argv: list[str], **options: Any) -> dict[str, Any]:
    """How a task of such a program fails."""
    world.app.command_agent("program", argv, retries=0, **options)
    await world.working()
    return await error_of(await world.submitted("program"))


async def pids_in(path: Path) -> list[int]:
    await eventually(path.exists, "the program says who it is")
    return [int(line) for line in path.read_text().split()]  # noqa: ASYNC240


async def gone(pids: list[int]) -> None:
    await eventually(lambda: not any(map(pid_alive, pids)), "nothing of the program is left")


async def test_a_program_gets_its_payload_and_its_task_and_gives_its_result(world: World) -> None:
    source = (
        "import json, os, sys; names = ('TASK_ID', 'ATTEMPT_ID', 'EPOCH', 'IDEMPOTENCY_KEY');"
        "said = {name: os.environ['ENDWELL_' + name] for name in names};"
        "said |= {'payload': json.load(sys.stdin), 'more': os.environ['MORE'], 'cwd': os.getcwd()};"
        "print(json.dumps({'result': said}))"
    )
    world.app.command_agent("program", [*PYTHON, source], env={"MORE": "thing"}, cwd="/")
    await world.working()
    handle = await world.submitted("program", {"text": "größer", "list": [1, None]}, key="once")
    said = await handle.result(PATIENCE_SECONDS)
    task = await handle.task()
    claimed = [event for event in await world.events(handle) if event.type == "task.claimed"]

    assert said["payload"] == {"text": "größer", "list": [1, None]}
    assert (said["TASK_ID"], said["IDEMPOTENCY_KEY"]) == (handle.id, "once")
    assert said["ATTEMPT_ID"] == claimed[0].attempt_id
    assert said["EPOCH"] == str(claimed[0].epoch)
    assert (said["more"], said["cwd"]) == ("thing", "/")
    assert (task.status, task.retry_count) == ("succeeded", 0)


async def test_a_large_payload_is_no_trouble_for_a_program_that_does_not_read_it(sqlite_world: World) -> None:
    sqlite_world.app.command_agent("program", shell("""echo '{"result": "did not look"}'"""))
    await sqlite_world.working()
    handle = await sqlite_world.submitted("program", "x" * 1_000_000)
    assert await handle.result(PATIENCE_SECONDS) == "did not look"


async def test_progress_of_a_program_is_stored_once_a_second_and_the_last_text_counts(
    sqlite_world: World,
) -> None:
    source = (
        "import json, time\n"
        "for n in range(5000): print(json.dumps({'progress': f'line {n}'}))\n"
        "for n in range(300): print(json.dumps({'progress': f'page {n}'}), flush=True); time.sleep(0.005)\n"
        "print(json.dumps({'usage': {'tokens': 7, 'usd': 0.25}}))\n"
        "print(json.dumps({'usage': {'tokens': 5}}))\n"
        "print(json.dumps({'draft': 'half'}))\n"
        "print(json.dumps({'result': 'whole'}))\n"
    )
    sqlite_world.app.command_agent("program", [*PYTHON, source])
    await sqlite_world.working()
    began = time.monotonic()
    handle = await sqlite_world.submitted("program")
    assert await handle.result(PATIENCE_SECONDS) == "whole"

    notes = [fact.note for fact in await sqlite_world.facts(handle, "task.heartbeat")]
    assert 1 <= len(notes) <= 3 + (time.monotonic() - began)
    assert notes[-1] == "page 299; used tokens 12, usd 0.25"


BUSY = (
    "import json, time\n"
    "while True:\n"
    " for line in LINES: print(json.dumps(line), flush=True)\n"
    " time.sleep(0.01)\n"
)


@pytest.mark.parametrize(
    ("lines", "repeated"),
    [
        (
            [{"progress": "at it"}, {"usage": {"tokens": 1}}, {"draft": "half"}],
            "nothing new for ",
        ),
        (
            [{"call": {"name": "search", "arguments": {"q": 1}}}, {"usage": {"tokens": 1}}],
            "the call of search with the same arguments, 6 times in a row",
        ),
        (
            [{"call": {"name": "search"}}, {"call": {"name": "read"}}, {"error": "no such page"}],
            "the same error of the program (no such page), 6 times in a row",
        ),
    ],
    ids=["the same words", "the same call", "the same error"],
)
async def test_a_program_that_repeats_itself_is_nudged_then_stopped(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, lines: list[Any], repeated: str
) -> None:
    monkeypatch.setattr(programs, "PULSE_SECONDS", 0.05)
    settings = {"progress.repeat_limit": 3, "progress.stall_seconds": 0.3}
    async with World(sqlite_url, settings=settings, clock=SystemClock()) as world:
        world.app.command_agent("program", [*PYTHON, BUSY.replace("LINES", repr(lines))])
        await world.working()
        handle = await world.submitted("program")
        error = await error_of(handle)
        assert error["code"] == "no_progress"
        assert repeated in error["message"]
        history = await world.history(handle)
        assert (history.count("task.nudged"), terminal(history)) == (1, ["task.failed"])


async def test_a_program_that_makes_progress_is_not_nudged(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New words, other calls and other errors are news, however often they come."""
    monkeypatch.setattr(programs, "PULSE_SECONDS", 0.05)
    source = (
        "import json, time\n"
        "for n in range(60):\n"
        " call = {'name': 'read', 'arguments': n}\n"
        " for line in ({'progress': f'page {n}'}, {'call': call}, {'error': f'{n}'}):\n"
        "  print(json.dumps(line), flush=True)\n"
        " time.sleep(0.01)\n"
        "print(json.dumps({'result': 'read'}))"
    )
    settings = {"progress.repeat_limit": 3, "progress.stall_seconds": 0.3}
    async with World(sqlite_url, settings=settings, clock=SystemClock()) as world:
        world.app.command_agent("program", [*PYTHON, source])
        await world.working()
        handle = await world.submitted("program")
        assert await handle.result(PATIENCE_SECONDS) == "read"
        assert "task.nudged" not in await world.history(handle)


async def test_the_last_draft_of_a_failing_program_is_salvaged(sqlite_world: World) -> None:
    world = sqlite_world
    source = (
        "import json, sys\n"
        "for n in range(2000): print(json.dumps({'draft': {'pages': n}}))\n"
        "sys.exit('out of ink')\n"
    )
    world.app.command_agent("program", [*PYTHON, source], retries=0)
    await world.working()
    began = time.monotonic()
    handle = await world.submitted("program")
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)

    deliverable = failed.value.deliverable
    assert (deliverable["kind"], deliverable["error"]["code"]) == ("partial_deliverable", "program_failed")
    assert deliverable["draft"] == {"pages": 1999}
    assert len(await world.facts(handle, "task.draft_kept")) <= 3 + (time.monotonic() - began)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("echo hello", "not valid JSON"),
        ("""printf '{"result": "\\377"}\\n'""", "not UTF-8"),
        ("""echo '{"answer": 1}'""", "none of progress, usage, draft, error, call, result"),
        ("""echo '{"result": 1, "progress": "x"}'""", "none of"),
        ("echo '[]'", "none of"),
        ("""echo '{"result": 1}'; echo '{"result": 2}'""", "second result"),
        ("""echo '{"usage": {"tokens": "many"}}'""", "no amount"),
        ("""echo '{"result": NaN}'""", "JSON cannot hold"),
        ("head -c 8400000 /dev/zero | tr '\\0' x", "a line of more than 8,388,608 bytes"),
        ("printf '\\033[31mred'", "\\x1b[31mred"),
    ],
)
async def test_unreadable_output_ends_the_program_and_fails_the_turn(
    sqlite_world: World, said: str, complaint: str
) -> None:
    error = await error_from(sqlite_world, shell(f"{said}; echo; sleep 3600"))
    assert error["code"] == "program_bad_output"
    assert complaint in error["message"]
    assert error.get("retryable", True)


async def test_endless_output_is_cut_off(sqlite_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("endwell.external.programs.OUTPUT_BYTES", 100_000)
    error = await error_from(sqlite_world, ["yes", '{"progress": "and on"}'])
    assert (error["code"], "more than 100,000 bytes" in error["message"]) == ("program_bad_output", True)


async def test_a_failing_program_is_reported_with_the_end_of_its_error_output(
    sqlite_world: World,
) -> None:
    line = "yes noise | head -c 200000 >&2; printf 'a\\033[2Jb\\000c\\nno such file\\n' >&2; exit 3"
    error = await error_from(sqlite_world, shell(line))
    assert error["code"] == "program_failed"
    assert error["message"] == "sh exited with code 3: no such file"
    assert "a\\x1b[2Jb" in error["traceback"]
    assert error["traceback"].endswith("no such file")
    assert len(error["traceback"]) < 4200


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("true", "program_no_result", "ended without a result line"),
        ("""echo '{"progress": "working"}'""", "program_no_result", "ended without a result line"),
        ("""echo '{"result": 1}'; exit 9""", "program_failed", "exited with code 9"),
        ("""echo '{"result": 1}'; kill -SEGV $$""", "program_failed", "was killed by SIGSEGV"),
    ],
)
async def test_only_a_result_and_a_clean_exit_is_success(
    sqlite_world: World, line: str, code: str, message: str
) -> None:
    error = await error_from(sqlite_world, shell(line))
    assert (error["code"], error["message"]) == (code, f"sh {message}")


@pytest.mark.parametrize(
    ("argv", "cwd"), [(["no-such-program"], None), (["sh"], "/no/such/place"), (["/etc/passwd"], None)]
)
async def test_a_program_that_cannot_be_started_fails_its_turn(
    sqlite_world: World, argv: list[str], cwd: str | None
) -> None:
    error = await error_from(sqlite_world, argv, cwd=cwd)
    assert error["code"] == "program_not_started"
    assert error["message"].startswith(f"{argv[0]} could not be started: [Errno ")


async def test_a_program_over_its_memory_limit_is_stopped(sqlite_world: World) -> None:
    eater = [*PYTHON, "x = b'x' * (400 << 20)"]
    error = await error_from(sqlite_world, eater, memory_mb=200)
    assert (error["code"], error["message"].endswith("MemoryError")) == ("program_failed", True)


async def test_a_timed_out_program_is_killed_with_all_it_started(sqlite_world: World, tmp_path: Path) -> None:
    """It ignores SIGTERM, and one of those it started has left its process group."""
    world = sqlite_world
    world.app.command_agent("patient", [*PYTHON, PATIENT], retries=0, timeout=3.0)
    world.app.command_agent("quick", shell("""echo '{"result": 1}'"""))
    await world.working(concurrency=1)
    handle = await world.submitted("patient", str(tmp_path / "pids"))
    after = await world.submitted("quick")
    pids = await pids_in(tmp_path / "pids")
    assert all(map(pid_alive, pids))

    error = await error_of(handle)
    assert error["code"] == "program_timeout"
    assert error["message"].endswith("did not end within 3 s")
    await gone(pids)
    assert await after.result(PATIENCE_SECONDS) == 1, "its slot is free again"


async def test_a_program_gets_sigterm_first_and_may_clean_up(sqlite_world: World, tmp_path: Path) -> None:
    trap = f"trap 'echo cleaned > {tmp_path}/mark; exit 0' TERM"
    line = f"{trap}; echo up > {tmp_path}/up; while :; do sleep 0.01; done"
    sqlite_world.app.command_agent("program", shell(line))
    await sqlite_world.working()
    handle = await sqlite_world.submitted("program")
    await eventually((tmp_path / "up").exists)
    await handle.cancel()
    await eventually((tmp_path / "mark").exists, "it cleaned up")
    assert terminal(await sqlite_world.history(handle)) == ["task.cancelled"]


async def test_cancelling_the_task_kills_its_program(world: World, tmp_path: Path) -> None:
    world.app.command_agent("patient", [*PYTHON, PATIENT])
    worker = await world.working()
    handle = await world.submitted("patient", str(tmp_path / "pids"))
    pids = await pids_in(tmp_path / "pids")
    await handle.cancel()
    await gone(pids)
    await eventually(lambda: worker._turns.slots_taken == 0, "the slot is free")
    assert terminal(await world.history(handle)) == ["task.cancelled"]


async def test_background_processes_of_a_program_are_killed_when_it_ends(
    sqlite_world: World, tmp_path: Path
) -> None:
    """The first shares its group and holds its output open, the second was forked twice, away from it."""
    line = (
        f"sleep 3600 & echo $! > {tmp_path}/first;"
        f"(setsid sh -c 'sleep 3600 & echo $! > {tmp_path}/second' &);"
        f"until [ -s {tmp_path}/second ]; do sleep 0.01; done;"
        """echo '{"result": "left two behind"}'"""
    )
    sqlite_world.app.command_agent("program", shell(line))
    await sqlite_world.working()
    handle = await sqlite_world.submitted("program")
    assert await handle.result(PATIENCE_SECONDS) == "left two behind"
    await gone([*await pids_in(tmp_path / "first"), *await pids_in(tmp_path / "second")])


async def test_a_retry_starts_the_program_again(quick_world: World, tmp_path: Path) -> None:
    line = (
        f"""echo x >> {tmp_path}/runs; [ $(wc -l < {tmp_path}/runs) = 3 ] && echo '{{"result": "third"}}'"""
    )
    quick_world.app.command_agent("program", shell(line), retries=3)
    await quick_world.working()
    handle = await quick_world.submitted("program")
    assert await handle.result(PATIENCE_SECONDS) == "third"
    assert (await handle.task()).retry_count == 2


async def test_programs_run_beside_each_other(sqlite_world: World) -> None:
    sqlite_world.app.command_agent("program", shell("""read x; echo "{\\"result\\": $x}" """))
    await sqlite_world.working(concurrency=10)
    handles = await sqlite_world.client.submit_many("program", range(30))
    assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == list(range(30))


@pytest.mark.parametrize(
    ("argv", "options", "field"),
    [
        ("rm -rf", {}, "argv"),
        ([], {}, "argv"),
        (["a", 1], {}, "argv"),
        (["a\0"], {}, "argv"),
        (["a"], {"env": {"A=B": "c"}}, "env"),
        (["a"], {"env": {"A": 1}}, "env"),
        (["a"], {"timeout": 0}, "timeout"),
        (["a"], {"timeout": "5"}, "timeout"),
        (["a"], {"memory_mb": 0.5}, "memory_mb"),
    ],
)
def test_an_invalid_command_is_refused_at_registration(
    sqlite_url: str, argv: Any, options: Any, field: str
) -> None:
    with pytest.raises(UsageError) as refused:
        Endwell(sqlite_url).command_agent("program", argv, **options)
    assert refused.value.field == field


async def test_the_event_loop_is_not_blocked_while_programs_run(sqlite_world: World) -> None:
    sqlite_world.app.command_agent("program", shell("""sleep 1.5; echo '{"result": 1}'"""))
    await sqlite_world.working()
    handle = await sqlite_world.submitted("program")
    looks = 0
    while not (task := await handle.task()).is_ended:
        looks += task.status == "running"
        await asyncio.sleep(0.005)
    assert looks > 10, "an event loop that waited for the program would have seen its end alone"
