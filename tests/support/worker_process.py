"""A real worker process for tests that signal and kill.

It prints `ready` once it can work. The first SIGTERM drains it, and it prints `draining`; the second ends it
at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from endwell import Context, Endwell
from endwell.runtime.child_process import ChildProcess
from endwell.runtime.signals import on_stop_signals
from endwell.worker.worker import Worker
from tests.nursery import born
from tests.patience import PATIENCE_SECONDS

FAST_EXIT = 130


def started(url: str, namespace: str, settings: dict[str, object], **options: Any) -> ChildProcess:
    """A worker process that is able to work."""
    child = born(__name__, {"url": url, "namespace": namespace, "settings": settings, "options": options})
    assert child.read_line(PATIENCE_SECONDS) == "ready"
    return child


def app_for(url: str, namespace: str, settings: dict[str, object]) -> Endwell:
    """The agents that such a process serves."""
    app = Endwell(url, namespace=namespace, settings=settings)

    @app.agent("echo")
    async def echo(value: Any) -> Any:
        return value

    @app.agent("nap")
    async def nap(seconds: float) -> int:
        await asyncio.sleep(seconds)
        return os.getpid()

    @app.agent("until")
    async def until(path: str) -> int:
        """Runs until there is such a file: a nap may be over before the test has looked."""
        while not os.access(path, os.F_OK):  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)
        return os.getpid()

    @app.agent("block")
    def block(seconds: float) -> int:
        time.sleep(seconds)
        return os.getpid()

    @app.agent("killer")
    async def killer() -> None:
        await asyncio.sleep(0.1)  # its neighbours have begun
        os._exit(9)

    @app.agent("scarce", concurrency=2)
    async def scarce(number: int) -> tuple[float, float, int]:
        return await _span()

    @app.agent("serial")
    async def serial(ctx: Context, number: int) -> tuple[float, float, int]:
        return await _span()

    return app


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def _span() -> tuple[float, float, int]:
    """From when to when it ran, and where; the clock is the same for all processes of a machine."""
    began = time.monotonic()
    await asyncio.sleep(0.01)
    return began, time.monotonic(), os.getpid()


async def main(about: dict[str, Any]) -> None:
    app = app_for(about["url"], about["namespace"], about["settings"])
    async with app.connect() as node:
        worker = node.worker(**about["options"])
        await worker.start()
        on_stop_signals(asyncio.get_running_loop(), lambda count: _told_to_stop(worker, count))
        _say("ready")
        await worker.run()
        await worker.close()


def _told_to_stop(worker: Worker, count: int) -> None:
    if count > 1:
        os._exit(FAST_EXIT)
    worker.stop()
    _say("draining")
