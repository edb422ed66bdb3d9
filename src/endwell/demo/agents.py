"""The three agents of `endwell demo`. Each has one effect; everything they do leaves a line in the sink.

The sink stands for the world outside: a file beside the store that Endwell neither reads nor writes.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from endwell.app import Endwell
from endwell.demo.records import append_line, read_lines
from endwell.turn.context import Context, SyncContext
from endwell.turn.effect_verdict import NOT_DONE, Done, Verdict

SINK = "ENDWELL_DEMO_SINK"
NAMESPACE = "ENDWELL_DEMO_NAMESPACE"
AGENTS = ("researcher", "writer", "clerk")
EFFECT_SECONDS = 1.0
"""How long an effect may take; after a crash, other attempts wait that long before they touch it."""

app = Endwell(namespace=os.environ.get(NAMESPACE, "default"))


class Job(msgspec.Struct, frozen=True):
    """How long to work, and how often to fail first."""

    number: int
    milliseconds: int
    failures: int = 0

    @property
    def work_seconds(self) -> float:
        return self.milliseconds / 1000


@app.agent("researcher")
async def read_sources(ctx: Context, job: Job) -> str:
    """Three steps and an effect."""
    for source in range(1, 4):
        await ctx.step(f"source {source}", app.runtime.sleep, job.work_seconds / 3)
    await ctx.effect("publish", publish, "findings", reconcile=find, timeout=EFFECT_SECONDS)
    _leave_line(ctx, "done")
    return f"findings {job.number}"


@app.agent("writer")
def write_draft(ctx: SyncContext, job: Job) -> str:
    """Ordinary blocking code in a thread."""
    ctx.step("draft", app.runtime.block, job.work_seconds)
    ctx.effect("send", publish, "draft", reconcile=find, timeout=EFFECT_SECONDS)
    _leave_line(ctx, "done")
    return f"draft {job.number}"


@app.agent("clerk", delays=(0.1, 0.2, 0.4))
async def file_form(ctx: Context, job: Job) -> str:
    """Fails as often as the job says, and is retried."""
    await app.runtime.sleep(job.work_seconds)
    await ctx.progress("asked the registry")
    if ctx.retry_count < job.failures:
        _leave_line(ctx, "raised")
        raise ConnectionError(f"the registry did not answer (failure {ctx.retry_count + 1})")
    await ctx.effect("file", publish, "form", reconcile=find, timeout=EFFECT_SECONDS)
    _leave_line(ctx, "done")
    return f"filed {job.number}"


def publish(what: str, idempotency_key: str) -> str:
    """Change the world outside; with a pause before and after, so that faults hit in between."""
    app.runtime.block(0.01)
    _append({"effect": idempotency_key, "pid": os.getpid(), "outcome": "effect"})
    app.runtime.block(0.01)
    return what


def find(key: str, what: str) -> Verdict:
    """Look outside whether the effect took place."""
    return Done(what) if was_published(Path(os.environ.get(SINK, "")), key) else NOT_DONE


def was_published(sink: Path, key: str) -> bool:
    """Whether the sink has a line for the effect."""
    return any(line.get("effect") == key for line in read_lines(sink))


def _leave_line(ctx: Context, outcome: str) -> None:
    _append({"task": ctx.task_id, "attempt": ctx.attempt_id, "pid": os.getpid(), "outcome": outcome})


def _append(line: dict[str, object]) -> None:
    if path := os.environ.get(SINK):
        append_line(Path(path), line)
