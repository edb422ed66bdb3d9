"""A worker process whose one effect is interrupted where the test says.

Every call of the effect's function leaves a line in a
sink file, which no Endwell process looks at.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from endwell import NOT_DONE, Context, Done, Endwell
from endwell.runtime.processes import Child
from endwell.store.sqlite.effect_store import SqliteEffectStore
from tests.execution.ten_steps import Sink
from tests.nursery import born

KEY = "pay:42"
WINDOWS = ("before the call", "after the call", "after the put", "between intent and call")


class Interrupted(SqliteEffectStore):
    """Dies after it has put a result away, or waits between intent and call until it is let go."""

    def __init__(self, home: Path, window: str) -> None:
        super().__init__(home / "effects.db")
        self._home = home
        self._window = window

    async def get(self, key: str) -> bytes | None:
        found = await super().get(key)
        if self._window == "between intent and call":
            (self._home / "reached").touch()
            while not (self._home / "go-on").exists():
                time.sleep(0.01)  # noqa: ASYNC251 (the whole process is to be frozen here)
        return found

    async def put(self, key: str, content: bytes, attempt_id: str) -> None:
        await super().put(key, content, attempt_id)
        if self._window == "after the put":
            os.kill(os.getpid(), signal.SIGKILL)


def app_for(url: str, namespace: str, settings: dict[str, object], home: Path, window: str = "") -> Endwell:
    """Without a window nothing is interrupted."""
    is_foreign = (home / "foreign").exists()
    effects = Interrupted(home, window) if is_foreign else None
    app = Endwell(url, namespace=namespace, settings=settings, effects=effects)
    sink = Sink(home / "sink")

    def pay(amount: int, idempotency_key: str) -> str:
        if window == "before the call":
            os.kill(os.getpid(), signal.SIGKILL)
        sink.note("pay", idempotency_key)
        if window == "after the call":
            os.kill(os.getpid(), signal.SIGKILL)
        return f"receipt for {amount}"

    def find(key: str, amount: int) -> Any:
        return Done(f"found {amount}") if sink.has("pay", key) else NOT_DONE

    @app.agent("payer")
    async def payer(ctx: Context, options: dict[str, Any]) -> str:
        reconcile = find if options.pop("reconcile", True) else None
        options = {"timeout": 1.0, **options}
        paid: str = await ctx.effect("pay", pay, 5, key=KEY, reconcile=reconcile, **options)
        return paid

    return app


def started(about: dict[str, Any]) -> Child:
    child = born(__name__, about)
    assert child.read_line(60) == "ready"
    return child


async def main(about: dict[str, Any]) -> None:
    about["home"] = Path(about["home"])
    async with app_for(**about).connect() as node:
        worker = node.worker()
        await worker.start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await worker.run()
