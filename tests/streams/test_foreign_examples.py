"""The examples of foreign workers do what docs/protocol.md says where things go wrong."""

from __future__ import annotations

import asyncio
import shutil
import sys
from typing import Any

import pytest

from tests.patience import PATIENCE_SECONDS
from tests.servers.small import ValkeyServer
from tests.streams.programs import EXAMPLES, Programs, known
from tests.streams.streamed import Streamed
from tests.streams.test_losses import alone

__all__ = ["alone"]

GOOD = {"task_id": "t", "turn": "t.t1", "epoch": 1}
PYTHON = ("resize", [sys.executable, "worker.py"], {"width": 640}, {"width": 320})
NODE = ("slugify", [shutil.which("node") or "", "worker.mjs"], {"title": "Next one"}, "next-one")
WORKERS = pytest.mark.parametrize(
    ("tool", "command", "payload", "result"),
    [
        pytest.param(*PYTHON, id="python"),
        pytest.param(
            *NODE, id="node", marks=pytest.mark.skipif(not NODE[1][0], reason="node is not installed")
        ),
    ],
)


def start(programs: Programs, command: list[str], streamed: Streamed, url: str) -> Any:
    program, name = command
    return programs.start(program, str(EXAMPLES / name), url, streamed.names.prefix)


@WORKERS
async def test_example_leaves_unreadable_entries_alone(
    streamed: Streamed,
    redis_url: str,
    programs: Programs,
    tool: str,
    command: list[str],
    payload: Any,
    result: Any,
) -> None:
    await streamed.supervised()
    process = start(programs, command, streamed, redis_url)
    await known(streamed, tool)
    bad = [
        await streamed.put(**fields)
        for fields in (
            {"task_id": "t", "tool_name": tool, "payload": "1"},
            {**GOOD, "tool_name": tool, "payload": "{"},
            {**GOOD, "tool_name": tool, "payload": b'"\xff"'},
            {**GOOD, "tool_name": tool, "payload": "1", "epoch": "one"},
        )
    ]
    handle = await streamed.world.submitted(tool, payload)
    assert await handle.result(PATIENCE_SECONDS) == result
    assert process.poll() is None
    assert {message_id for message_id, _, _ in await streamed.pending()} >= set(bad)


@WORKERS
async def test_example_survives_a_restart_of_the_server(
    alone: Streamed,
    own_valkey: ValkeyServer,
    programs: Programs,
    tool: str,
    command: list[str],
    payload: Any,
    result: Any,
) -> None:
    await alone.supervised()
    process = start(programs, command, alone, own_valkey.url)
    await known(alone, tool)
    slow = await alone.world.submitted(tool, {**payload, "delay_ms": 1500})
    await alone.world.in_status(slow, "running", "succeeded")
    await asyncio.to_thread(own_valkey.kill)
    await asyncio.to_thread(own_valkey.start)
    assert await slow.result(PATIENCE_SECONDS) == result
    assert await (await alone.world.submitted(tool, payload)).result(PATIENCE_SECONDS) == result
    assert process.poll() is None
    assert (await slow.task()).dispatch_count == 1, "its result counted"
