"""Agents that tell their worker what no agent should."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from msgspec.json import Decoder

from endwell import Context, EndwellError
from endwell.model import commands as c
from endwell.model import content
from tests.support.outside.app import app


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


@app.agent("stops-its-warden", isolation="process", timeout=1.0, retries=0)
def stops_its_warden(path: str) -> None:
    Path(path).write_text(f"{os.getpid()}\n{os.getppid()}\n")
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(3600)
