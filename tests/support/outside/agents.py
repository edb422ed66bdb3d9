"""Agents that run in processes of their own, and what they do there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from endwell import Approval, Context, EndwellError, Fail, Retry, SyncContext
from tests.support.outside.app import app, called, write

LOADED_AT = time.time()


class Hopeless(Exception):
    pass


@dataclass
class Ticket:
    id: int
    title: str = "none"


@app.agent("typed", isolation="process", retries=0)
async def typed(ctx: Context, ticket: Ticket) -> dict[str, Any]:
    print("this is no message to the worker")  # noqa: T201
    await ctx.progress(f"looking at {ticket.title}")
    return {"id": ticket.id, "pid": os.getpid(), "worker": os.getppid(), "attempt": ctx.attempt_id}


@app.agent("blocking", isolation="process", retries=0)
def blocking(ctx: Context, ticket: Ticket) -> Ticket:
    ctx.progress("from a thread")  # type: ignore[unused-coroutine]  # blocks in a thread
    return Ticket(ticket.id + 1, sys.stdin.read())


@app.agent("loaded", isolation="process", retries=0)
async def loaded() -> float:
    return LOADED_AT


@app.agent("raises", isolation="process", retries=2, give_up_on=Hopeless)
async def raises(kind: str) -> Any:
    if kind == "fail":
        raise Fail("no use")
    if kind == "retry":
        raise Retry("later", after=3600)
    if kind == "hopeless":
        raise Hopeless("given up on")
    if kind == "unstorable":
        return {1, 2}
    if kind == "exit":
        os._exit(7)
    if kind == "crash":
        os.abort()
    if kind == "large":
        return "x" * 1_000_000
    raise ValueError(f"no such {kind}")


@app.agent("stuck", isolation="process", timeout=1.0, retries=0)
def stuck(kind: str) -> None:
    while kind == "busy":
        pass
    if kind == "holds-gil":
        re.match(r"(a|a)*b", "a" * 60)  # C code that lets no other thread run
    time.sleep(3600)


@app.agent("stuck-loop", isolation="process", timeout=1.0, retries=0)
async def stuck_loop() -> None:
    while True:
        pass


@app.agent("hungry", isolation="process", memory_mb=100, retries=0)
def hungry(megabytes: int) -> int:
    return len(b"x" * (megabytes * 1024 * 1024))


@app.agent("waiting", isolation="process", retries=0)
async def waiting(path: str) -> None:
    write(path, f"{os.getpid()}\n")
    try:
        await asyncio.Event().wait()
    finally:
        write(f"{path}.cleaned", "yes")


@app.agent("chatty", isolation="process", retries=0)
async def chatty(ctx: Context, path: str) -> None:
    write(path, f"{os.getpid()}\n")
    while True:
        await ctx.progress("still here")
        await asyncio.sleep(0.05)


async def called_on_the_loop(path: str, name: str) -> str:
    return called(path, name)


@app.agent("double")
async def double(number: int) -> int:
    return 2 * number


@app.agent("verbs", isolation="process", retries=0)
async def verbs(ctx: Context, path: str) -> dict[str, Any]:
    first = await ctx.step("first", called, path, "first")
    pair = await ctx.gather(
        ctx.step("left", called_on_the_loop, path, "left"), lambda: ctx.step("right", called, path, "right")
    )
    paid = await ctx.effect("pay", called, path, "pay", key=f"pay {ctx.task_id}")
    await ctx.draft([first, *pair])
    waited = await ctx.gather(
        ctx.tool("look-up", {"what": first}),
        ctx.call("double", 21),
        ctx.wait_signal("go"),
        ctx.approve("go on?", show=paid),
        ctx.sleep(0.01),
    )
    waited[3] = list(waited[3].by)
    return {"first": first, "pair": pair, "paid": paid, "waited": waited}


@app.agent("blocking-verbs", isolation="process", retries=0)
def blocking_verbs(ctx: SyncContext, path: str) -> dict[str, Any]:
    first = ctx.step("first", called, path, "first")
    pair = ctx.gather(
        lambda: ctx.step("left", called_on_the_loop, path, "left"),
        lambda: ctx.step("right", called, path, "right"),
    )
    paid = ctx.effect("pay", called, path, "pay", key=f"pay {ctx.task_id}")
    ctx.draft([first, *pair])
    waited = ctx.gather(
        lambda: ctx.tool("look-up", {"what": first}),
        lambda: ctx.call("double", 21),
        lambda: ctx.wait_signal("go"),
        lambda: list(ctx.approve("go on?", show=paid).by),
        lambda: ctx.sleep(0.01),
    )
    return {"first": first, "pair": pair, "paid": paid, "waited": waited}


def hangs_once(path: str, name: str) -> str:
    said = called(path, name)
    while Path(path).read_text().count(f"{name} ") == 1:
        time.sleep(0.01)
    return said


@app.agent("hangs", isolation="process", retries=1)
async def hangs(ctx: Context, path: str) -> list[Any]:
    first = await ctx.step("first", called, path, "first")
    return [first, await ctx.step("second", hangs_once, path, "second")]


def paid_already(key: str, path: str, name: str) -> str:
    return f"{name} was done"


@app.agent("pays", isolation="process", retries=1)
def pays(ctx: SyncContext, path: str) -> Any:
    return ctx.effect("pay", hangs_once, path, "pay", reconcile=paid_already, timeout=30)


@app.agent("asks-a-person", isolation="process", retries=1)
async def asks_a_person(ctx: Context, path: str) -> Any:
    return await ctx.effect("pay", hangs_once, path, "pay", key="the payment", timeout=1.0)


@app.agent("pays-later", isolation="process", retries=0)
def pays_later(ctx: SyncContext, path: str) -> Any:
    called(path, "ready")
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)
    return ctx.effect("pay", called, path, "pay", timeout=30)


@app.agent("slow-step", isolation="process", retries=0)
def slow_step(ctx: SyncContext, path: str) -> str:
    try:
        ctx.step("slow", hangs_once, path, "slow", timeout=1.0)
    except EndwellError as error:
        return error.code
    return "in time"


@app.agent("large-records", isolation="process", retries=0)
async def large_records(ctx: Context) -> int:
    values = [await ctx.step("large", lambda: "x" * 1_000_000) for _ in range(6)]
    await ctx.sleep(0)
    return sum(map(len, values))


@dataclass
class Noted:
    """Notes which process reads it."""

    path: str

    def __post_init__(self) -> None:
        with Path(self.path).open("a") as notes:
            notes.write(f"read {os.getpid()}\n")


@app.agent("notes-its-payload", isolation="process", retries=0)
async def notes_its_payload(payload: Noted) -> int:
    return os.getpid()


@app.agent("asks-for-much", isolation="process", retries=0)
async def asks_for_much(ctx: Context) -> Any:
    return await ctx.gather(*(ctx.tool("look", "x" * 1_000_000) for _ in range(20)))


@app.agent("forgetful", retries=0)
async def forgetful() -> None:
    raise Retry("later", after=10**400)


@app.agent("guarded", approval=Approval(by=("ada",)))
async def guarded(amount: int) -> int:
    return amount


@app.tool("refund", risk="money_movement")
async def refund(amount: int) -> int:
    return amount


@app.agent("stepping", isolation="process", retries=0)
async def stepping(ctx: Context, path: str) -> None:
    write(path, f"{os.getpid()}\n")
    while True:
        with contextlib.suppress(EndwellError):  # it continues as if nothing had happened
            await ctx.step("again", lambda: 1)
        await asyncio.sleep(0.05)


@app.agent("hungry-step", isolation="process", memory_mb=300, retries=0)
def hungry_step(ctx: SyncContext, megabytes: int) -> list[int]:
    size = megabytes * 1024 * 1024
    return [ctx.step("eat", lambda: len(bytes(size))), len(bytes(size))]


@app.agent("neighbour")
def neighbour(path: str) -> int:
    """Runs until there is such a file."""
    while not Path(path).exists():
        time.sleep(0.01)
    return os.getpid()
