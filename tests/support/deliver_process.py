"""A real process: one tick of a worker's watchdog, which it does not survive if it delivers to one task."""

from __future__ import annotations

import os
import signal
from typing import Any

from msgspec.structs import replace

from endwell.machine.table import TABLE
from endwell.model import commands as c
from endwell.runtime.child_process import ChildProcess
from endwell.worker.watchdog import WorkerWatchdog
from tests.nursery import born
from tests.support.manual_clock import ManualClock
from tests.support.world import QUICK, MovableApp


def started(url: str, namespace: str, now: int, poisoned: str) -> ChildProcess:
    """Such a process, at this moment."""
    return born(__name__, {"url": url, "namespace": namespace, "now": now, "poisoned": poisoned})


async def main(about: dict[str, Any]) -> None:
    kind: type[c.Command] = c.Deliver
    usual = TABLE[kind].then

    def deadly(task: Any, *arguments: Any) -> Any:
        if task.id == about["poisoned"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return usual(task, *arguments)

    TABLE[kind] = replace(TABLE[kind], then=deadly)
    app = MovableApp(
        about["url"], namespace=about["namespace"], clock=ManualClock(about["now"]), settings=QUICK
    )
    async with app.connect() as node:
        watchdog = WorkerWatchdog(node.make_actor("watch"), app.runtime, app.settings)
        await watchdog.run_once()
