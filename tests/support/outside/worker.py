"""A worker process that serves the app."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from endwell.runtime.child_process import ChildProcess
from endwell.runtime.signals import on_stop_signals
from tests.nursery import born
from tests.patience import PATIENCE_SECONDS
from tests.support.outside import agents, hostile, programs
from tests.support.outside.app import ABOUT, app

AGENTS = (agents, hostile, programs)
"""Modules whose import registers their agents with the app."""


def started(
    url: str, namespace: str, settings: dict[str, object], effects: Path | None = None, **options: Any
) -> ChildProcess:
    """A worker process that is able to work."""
    where = {"url": url, "namespace": namespace, "effects": effects and str(effects)}
    about = json.dumps({**where, "settings": settings, "options": options})
    child = born(__name__, {}, OUTSIDE_APP=about)
    assert child.read_line(PATIENCE_SECONDS) == "ready"
    return child


async def main(_: dict[str, Any]) -> None:
    async with app.connect() as node:
        worker = node.worker(**ABOUT["options"])
        await worker.start()
        on_stop_signals(
            asyncio.get_running_loop(), lambda count: worker.stop() if count == 1 else os._exit(1)
        )
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await worker.run()
        await worker.close()
