"""Running commands as a user does: real processes in a directory of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from endwell.runtime.child_process import ChildProcess, start_process
from tests.patience import PATIENCE_SECONDS

SECONDS = PATIENCE_SECONDS
"""Longer than anything here takes; a test that waits so long has failed."""

APP = """
import asyncio
from dataclasses import dataclass
from pathlib import Path

from endwell import Context, Endwell

app = Endwell("sqlite:///store.db")
not_an_app = 5


@dataclass
class Order:
    id: str
    items: int = 1


@app.agent("clerk")
async def clerk(order: Order) -> int:
    return 3 * order.items


@app.agent("picky", retries=0)
def picky(amount: dict) -> int:
    if amount["value"] < 0:
        raise ValueError(f"cannot take {amount['value']}\\x1b[31m")
    return amount["value"]


@app.agent("slow")
async def slow(seconds: float) -> str:
    print("started", flush=True)
    await asyncio.sleep(seconds)
    return "done"


@app.agent("once")
async def once(marker: str) -> str:
    if Path(marker).exists():
        return "second"
    Path(marker).touch()
    print("started", flush=True)
    await asyncio.sleep(600)
    return "first"


@app.agent("buyer")
async def buyer(ctx: Context, price: int) -> str:
    await ctx.approve("Buy it?", show={"price": price}, by=("ada", "bob"))
    return "bought"


@app.agent("asker", retries=0)
async def asker(ctx: Context) -> object:
    return await ctx.tool("oracle", {"q": 1})


@app.agent("crowd", retries=0)
async def crowd(ctx: Context) -> object:
    return await ctx.gather(*(ctx.tool("oracle", {"q": number}) for number in range(40)))


@app.agent("drafter", retries=0)
async def drafter(ctx: Context) -> None:
    await ctx.draft({"half": 1})
    raise ValueError("and no further")


@app.agent("listener")
async def listener(ctx: Context) -> object:
    return await ctx.wait_signal("go")


@app.agent("boss")
async def boss(ctx: Context) -> int:
    return await ctx.call("clerk", {"id": "1"})


@app.agent("guarded", approval=True)
async def guarded(amount: int) -> int:
    return amount
"""

QUICK = {
    "ENDWELL__WORKER__LEASE_SECONDS": "2",
    "ENDWELL__WORKER__HEARTBEAT_SECONDS": "0.2",
    "ENDWELL__WORKER__POLL_SECONDS": "0.2",
    "ENDWELL__WORKER__QUIET_POLL_SECONDS": "0.2",
    "ENDWELL__PMO__WATCHDOG_INTERVAL_SECONDS": "0.1",
}


@dataclass(frozen=True)
class Answer:
    """The answer of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """One JSON document per line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        """The error in its shape."""
        told: dict[str, Any] = self.document["error"]
        assert set(told) == {"code", "message", "hint", "field", "task_id"}
        return told


def clean_environment() -> dict[str, str]:
    """This environment without settings of Endwell, and with the package of this repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ENDWELL")}
    return {**kept, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}


class Shell:
    """A directory with an app, and processes started in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = clean_environment()
        (directory / "app.py").write_text(APP, encoding="utf-8")

    def run(
        self,
        *words: str,
        stdin: str = "",
        environment: Mapping[str, str] | None = None,
        preexec: Callable[[], None] | None = None,
    ) -> Answer:
        """Run one command to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "endwell", *words],
            cwd=self.directory,
            env={**self.environment, **(environment or {})},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            preexec_fn=preexec,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def serving(
        self, *words: str, environment: Mapping[str, str] | None = None, errors: int | None = None
    ) -> Iterator[ChildProcess]:
        """A started and ready service, killed at the end. `errors` may join its output."""
        child = start_process(
            [sys.executable, "-m", "endwell", *words],
            {**self.environment, **QUICK, **(environment or {})},
            cwd=self.directory,
            stderr=errors,
        )
        try:
            ready = json.loads(child.read_line(SECONDS) or "null")
            assert ready == {"event": "ready", "id": ready["id"], "pid": child.pid}
            yield child
        finally:
            child.kill()
            child.wait(SECONDS)
            child.close()
