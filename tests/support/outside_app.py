"""An app whose agents work outside their worker, and a worker process that serves it.

Isolated agents must be found again by another process, so the app is a variable of this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.json import Decoder

from endwell import Approval, Context, Endwell, EndwellError, Fail, Retry, SqliteEffectStore, SyncContext
from endwell.model import commands as c
from endwell.model import content
from endwell.runtime.child_process import ChildProcess
from endwell.runtime.signals import on_stop_signals
from tests.nursery import born
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
ABOUT = json.loads(os.environ.get("OUTSIDE_APP", "{}"))
LOADED_AT = time.time()

app = Endwell(
    ABOUT.get("url"),
    namespace=ABOUT.get("namespace", "default"),
    settings=ABOUT.get("settings"),
    effects=SqliteEffectStore(ABOUT["effects"]) if ABOUT.get("effects") else None,
)


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


def _write(path: str, text: str) -> None:
    """It is never seen half written."""
    Path(f"{path}.new").write_text(text)
    Path(f"{path}.new").rename(path)


@app.agent("waiting", isolation="process", retries=0)
async def waiting(path: str) -> None:
    _write(path, f"{os.getpid()}\n")
    try:
        await asyncio.Event().wait()
    finally:
        _write(f"{path}.cleaned", "yes")


@app.agent("chatty", isolation="process", retries=0)
async def chatty(ctx: Context, path: str) -> None:
    _write(path, f"{os.getpid()}\n")
    while True:
        await ctx.progress("still here")
        await asyncio.sleep(0.05)


def called(path: str, name: str) -> str:
    """Leaves a line in a file for every call."""
    with Path(path).open("a") as file:
        file.write(f"{name} {os.getpid()}\n")
    return name.upper()


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


@app.agent("forger", isolation="process", retries=0)
async def forger(ctx: Context, other: str) -> dict[str, list[str]]:
    """What the worker says to what a turn must not ask for."""
    recorder = ctx._recorder
    mine = recorder.command(c.Progress)
    commands = {
        "cancel": c.Cancel(**_about(mine)),
        "attempt": c.Progress(**{**_about(mine), "attempt_id": "another"}),
        "task": c.Progress(**{**_about(mine), "task_id": other, "attempt_id": mine.attempt_id}),
        "settle": c.SettleEffect(**_about(mine), key="a", verdict="abandon"),
    }
    asked = {
        "namespace": recorder.store.card("elsewhere", f"{ctx.task_id}.in"),
        "card": recorder.store.card(recorder.task.namespace, f"{ctx.task_id}.none"),
        "method": recorder.store.ask(Decoder(), "tasks", recorder.task.namespace),  # type: ignore[attr-defined]
    }
    asked |= {name: recorder.store.commit((command,)) for name, command in commands.items()}
    said = {}
    for name, question in asked.items():
        try:
            said[name] = [repr(await question)]
        except EndwellError as error:
            said[name] = [type(error).__name__, error.code]
    return said


def _about(command: c.TaskCommand) -> dict[str, Any]:
    names = ("command_id", "namespace", "actor", "task_id")
    return {name: getattr(command, name) for name in names}


@app.agent("raw", isolation="process", retries=0)
async def raw(ctx: Context, text: str) -> list[Any]:
    """Asks what it is given to ask, past every check on this side; `@` stands for what only it knows."""
    recorder, said, given = ctx._recorder, [], json.loads(text)
    own = {
        "command_id": f"{ctx.attempt_id}.7000",
        "namespace": recorder.task.namespace,
        "actor": recorder.actor,
    }
    own |= {"task_id": ctx.task_id, "attempt_id": ctx.attempt_id}
    link = recorder.store.pipe  # type: ignore[attr-defined]
    for method, *arguments in given["asks"]:
        if method == "commit":
            arguments = [[{"type": kind, "fields": {**own, **fields}} for kind, fields in arguments]]
        elif method != "now":
            arguments = [recorder.task.namespace, *arguments]
        try:
            answer = await link.ask("store", {"method": method, "arguments": arguments})
            said.append(json.loads(bytes(answer)))
        except EndwellError as error:
            said.append(error.code)
    if "last" in given:
        line = json.dumps(given["last"]).replace("@task", ctx.task_id)
        await link.send_last(line.encode())
        os._exit(0)
    return said


@app.agent("babbles", isolation="process", retries=0)
async def babbles(ctx: Context, lines: list[str]) -> None:
    """Writes these lines to its worker, each character a byte, and ends without another word."""
    pipe = ctx._recorder.store.pipe._writing.fileno()  # type: ignore[attr-defined]
    os.set_blocking(pipe, True)
    for line in lines:
        data = line.replace("@task", ctx.task_id).encode("latin-1") + b"\n"
        while data:
            data = data[os.write(pipe, data) :]
    os._exit(0)


@app.agent("forgetful", retries=0)
async def forgetful() -> None:
    raise Retry("later", after=10**400)


@app.agent("forges-approval", isolation="process", retries=0)
async def forges_approval(ctx: Context) -> Any:
    """Writes the record of a decision that no person made, then looks for it."""
    asking = content.encode({"question": "pay?", "shown": None}, what="show")
    digest = content.fingerprint(asking)
    said = content.encode({"status": "approved", "by": ["ada"], "shown_hash": digest}, what="forged")
    step = f"{ctx._recorder.run}:()approve@{digest[:16]}#1"
    about = {"content": said, "content_hash": content.fingerprint(said)}
    await ctx._recorder.commit(ctx._recorder.command(c.RecordStep, step=step, **about))
    ctx._recorder._records = await ctx._recorder._read_records()
    return list((await ctx.approve("pay?")).by)


@app.agent("floods", isolation="process", retries=0)
async def floods(ctx: Context, kind: str) -> None:
    """Writes to its worker for ever, and reads nothing."""
    link = ctx._recorder.store.pipe  # type: ignore[attr-defined]
    await ctx.step("large", lambda: "x" * 1_000_000)
    pipe = link._writing.fileno()
    os.set_blocking(pipe, True)
    large = ["commit", [{"type": "Progress", "fields": {"note": "x" * 3_000_000}}]]
    mine = ["card", ctx._recorder.task.namespace, f"{ctx.task_id}.s.{ctx._recorder.run}:()large#1"]
    method, *arguments = large if kind == "large" else mine
    asking = {"ask": "store", "id": 1, "with": {"method": method, "arguments": arguments}}
    line = json.dumps({"doing": {"x": 1}} if kind == "doing" else asking).encode() + b"\n"
    if kind == "wide":  # small as text, and large as objects
        line = (
            b'{"ask":"store","id":1,"with":{"method":"card","arguments":[' + b"[]," * 1_300_000 + b"[]]}}\n"
        )
    if kind == "wide result":
        line = b'{"result":[' + b"[]," * 5_000_000 + b"[]]}\n"
    while True:
        sent = os.write(pipe, line)
        while sent < len(line):
            sent += os.write(pipe, line[sent:])


@app.agent("guarded", approval=Approval(by=("ada",)))
async def guarded(amount: int) -> int:
    return amount


@app.tool("refund", risk="money_movement")
async def refund(amount: int) -> int:
    return amount


@app.agent("stepping", isolation="process", retries=0)
async def stepping(ctx: Context, path: str) -> None:
    _write(path, f"{os.getpid()}\n")
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


PATIENT = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
path = sys.stdin.read().strip('"')
same = subprocess.Popen(["sleep", "3600"])
away = subprocess.Popen(["sleep", "3600"], start_new_session=True)
with open(path + ".new", "w") as file:
    file.write(f"{os.getpid()}\\n{same.pid}\\n{away.pid}\\n")
os.rename(path + ".new", path)
time.sleep(3600)
"""
"""A program that ignores SIGTERM and has started two others, one of them in another group."""

app.command_agent("patient", [sys.executable, "-I", "-S", "-c", PATIENT], retries=0)
CHATTY = """
import os, sys, time
path = sys.stdin.read().strip('"')
with open(path + ".new", "w") as file:
    file.write(f"{os.getpid()}\\n")
os.rename(path + ".new", path)
while True:
    print('{"progress": "still here"}', flush=True)
    time.sleep(0.05)
"""

app.command_agent("chatty-program", [sys.executable, "-I", "-S", "-c", CHATTY], retries=0)
app.command_agent("short", [sys.executable, "-I", "-S", "-c", PATIENT], retries=0, timeout=3.0)


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
