"""The example programs of foreign workers, in Python, Bash and JavaScript, do tasks."""

from __future__ import annotations

import shutil
import sys
from urllib.parse import urlsplit

import pytest

from tests.patience import PATIENCE_SECONDS
from tests.streams.programs import EXAMPLES, Programs, known
from tests.streams.streamed import Streamed


@pytest.mark.covers("S4.4")
async def test_python_worker_with_only_redis_py_does_tasks(
    on_each_store: Streamed, redis_url: str, programs: Programs
) -> None:
    streamed = on_each_store
    await streamed.supervised()
    programs.start(sys.executable, str(EXAMPLES / "worker.py"), redis_url, streamed.names.prefix)
    await known(streamed, "resize")
    good = await streamed.world.submitted("resize", {"width": 640})
    bad = await streamed.world.submitted("resize", {"height": 1})
    assert await good.result(PATIENCE_SECONDS) == {"width": 320}
    task = await streamed.world.in_status(bad, "failed")
    assert task.retry_count == 4, "it failed, was tried three times more, and became a dead letter"
    assert "KeyError" in (task.error or "")
    assert await streamed.world.history(good) == [
        "task.created",
        "task.dispatched",
        "task.claimed",
        "turn.ended",
        "task.succeeded",
    ]
    await streamed.nothing_pending()


async def test_bash_worker_does_tasks_and_passes_on_tools_that_it_does_not_serve(
    streamed: Streamed, redis_url: str, programs: Programs
) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    await streamed.supervised()
    server = urlsplit(redis_url)
    programs.start(
        bash, str(EXAMPLES / "worker.sh"), server.hostname or "", str(server.port), streamed.names.prefix
    )
    await known(streamed, "shout")
    handle = await streamed.world.submitted("shout", "größer, please")
    assert str(await handle.result(PATIENCE_SECONDS)).startswith("GR")

    @streamed.app.agent("clerk")
    async def clerk() -> str:
        return "done"

    await streamed.world.working(concurrency=1)
    handles = await streamed.world.client.submit_many("clerk", [None] * 5)
    assert [await each.result(PATIENCE_SECONDS) for each in handles] == ["done"] * 5
    await streamed.nothing_pending()


NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")


@needs_node
@pytest.mark.covers("S4.4")
async def test_node_worker_does_tasks_and_reports_failures_that_cannot_be_retried(
    streamed: Streamed, redis_url: str, programs: Programs
) -> None:
    await streamed.supervised()
    programs.start(NODE or "", str(EXAMPLES / "worker.mjs"), redis_url, streamed.names.prefix)
    await known(streamed, "slugify")
    good = await streamed.world.submitted("slugify", {"title": "Jede Aufgabe: größer"})
    bad = await streamed.world.submitted("slugify", {"name": 1})
    assert await good.result(PATIENCE_SECONDS) == "jede-aufgabe-gr-er"
    task = await streamed.world.in_status(bad, "failed")
    assert task.retry_count == 1, "it said that another try would not help"
    await streamed.nothing_pending()


@needs_node
async def test_foreign_program_that_is_terminated_hands_its_turn_back(
    streamed: Streamed, redis_url: str, programs: Programs
) -> None:
    await streamed.supervised()
    process = programs.start(NODE or "", str(EXAMPLES / "worker.mjs"), redis_url, streamed.names.prefix)
    await known(streamed, "slugify")
    handle = await streamed.world.submitted("slugify", {"title": "x", "delay_ms": 600_000})
    await streamed.world.in_status(handle, "running")
    process.terminate()
    task = await streamed.world.in_status(handle, "queued")
    assert (task.crash_count, task.retry_count, task.dispatch_count) == (0, 0, 1)
    await handle.cancel()


@needs_node
async def test_foreign_program_stops_when_its_turn_is_cancelled(
    streamed: Streamed, redis_url: str, programs: Programs
) -> None:
    await streamed.supervised()
    programs.start(NODE or "", str(EXAMPLES / "worker.mjs"), redis_url, streamed.names.prefix)
    await known(streamed, "slugify")
    slow = await streamed.world.submitted("slugify", {"title": "x", "delay_ms": 600_000})
    await streamed.world.in_status(slow, "running")
    await slow.cancel()
    next_one = await streamed.world.submitted("slugify", {"title": "Next"})
    assert await next_one.result(PATIENCE_SECONDS) == "next", "its only slot is free again"
