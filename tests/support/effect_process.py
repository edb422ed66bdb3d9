"""A worker process whose one effect is interrupted where the test says.

Every call of the effect's function leaves a line in a
sink file, which no Endwell process looks at.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from endwell import NOT_DONE, Context, Done, Endwell
from endwell.runtime.child_process import ChildProcess
from endwell.runtime.signals import on_stop_signals
from endwell.store.sqlite.effect_store import SqliteEffectStore
from tests.nursery import born
from tests.patience import PATIENCE_SECONDS
from tests.support.ten_steps import Sink

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

    def pay_when_let_go(amount: int, idempotency_key: str) -> str:
        (home / "reached").touch()
        while not (home / "go-on").exists():
            time.sleep(0.01)
        sink.note("pay", idempotency_key)
        return f"receipt for {amount}"

    until_let_go = f"touch {home}/reached; while [ ! -e {home}/go-on ]; do sleep 0.02; done"
    script = f"{until_let_go}; echo pay {KEY} >> {home}/sink"

    def pay_in_subprocess(amount: int) -> str:
        subprocess.run(["sh", "-c", script], check=True)
        return f"receipt for {amount}"

    async def pay_in_subprocess_of_asyncio(amount: int) -> str:
        await (await asyncio.create_subprocess_exec("sh", "-c", script)).wait()
        return f"receipt for {amount}"

    async def pay_in_thread(amount: int, idempotency_key: str) -> str:
        return await asyncio.to_thread(pay_when_let_go, amount, idempotency_key)

    @app.agent("payer")
    async def payer(ctx: Context, options: dict[str, Any]) -> str:
        reconcile = find if options.pop("reconcile", True) else None
        options = {"timeout": 1.0, **options}
        ways: dict[str, Callable[..., Any]] = {
            "a thread": pay_in_thread,
            "a def function": pay_when_let_go,
            "a subprocess": pay_in_subprocess,
            "a subprocess of asyncio": pay_in_subprocess_of_asyncio,
        }
        pays = ways.get(window, pay)
        paid: str = await ctx.effect("pay", pays, 5, key=KEY, reconcile=reconcile, **options)
        return paid

    return app


def started(about: dict[str, Any]) -> ChildProcess:
    child = born(__name__, about)
    assert child.read_line(PATIENCE_SECONDS) == "ready"
    return child


async def main(about: dict[str, Any]) -> None:
    about["home"] = Path(about["home"])
    async with app_for(**about).connect() as node:
        worker = node.worker()
        await worker.start()
        on_stop_signals(asyncio.get_running_loop(), lambda _: worker.stop())
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await worker.run()
        await worker.close()
