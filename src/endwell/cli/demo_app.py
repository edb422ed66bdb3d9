"""The three small agents of `endwell demo`. Every execution that comes to its end leaves a line in the sink.

The sink stands for the world outside: a file beside the store that is only ever appended to, one write
per line, and that Endwell itself neither reads nor writes.
"""

from __future__ import annotations

import os

import msgspec

from endwell.app import Endwell
from endwell.worker.context import Context, SyncContext

SINK = "ENDWELL_DEMO_SINK"
NAMESPACE = "ENDWELL_DEMO_NAMESPACE"
AGENTS = ("researcher", "writer", "clerk")

app = Endwell(namespace=os.environ.get(NAMESPACE, "default"))


class Job(msgspec.Struct, frozen=True):
    """How long to work, and how often to fail before succeeding."""

    number: int
    milliseconds: int
    failures: int = 0

    @property
    def seconds(self) -> float:
        return self.milliseconds / 1000


@app.agent("researcher")
async def researcher(ctx: Context, job: Job) -> str:
    """Reads three sources, and says so after each."""
    for source in range(1, 4):
        await app.runtime.sleep(job.seconds / 3)
        await ctx.progress(f"read source {source} of 3")
    _leave_line(ctx, "done")
    return f"findings {job.number}"


@app.agent("writer")
def writer(ctx: SyncContext, job: Job) -> str:
    """Ordinary blocking code in a thread."""
    app.runtime.block(job.seconds)
    ctx.progress("drafted")
    _leave_line(ctx, "done")
    return f"draft {job.number}"


@app.agent("clerk", delays=(0.1, 0.2, 0.4))
async def clerk(ctx: Context, job: Job) -> str:
    """Fails as often as the job says, and is tried again."""
    await app.runtime.sleep(job.seconds)
    await ctx.progress("asked the registry")
    if ctx.retry_count < job.failures:
        _leave_line(ctx, "raised")
        raise ConnectionError(f"the registry did not answer (failure {ctx.retry_count + 1})")
    _leave_line(ctx, "done")
    return f"filed {job.number}"


def _leave_line(ctx: Context, outcome: str) -> None:
    path = os.environ.get(SINK)
    if path is None:
        return
    line = {"task": ctx.task_id, "attempt": ctx.attempt_id, "pid": os.getpid(), "outcome": outcome}
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(line) + b"\n")
    finally:
        os.close(descriptor)
