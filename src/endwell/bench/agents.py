"""The agents of `endwell bench`. They do next to nothing, so that the figures are Endwell's own cost."""

from __future__ import annotations

import os

from endwell.app import Endwell
from endwell.turn.context import Context

NAMESPACE = "ENDWELL_BENCH_NAMESPACE"
AGENT = "noop"
STEPS = "steps"
ASKS = "asks"
REPLAYS = "replays"
TOOL = "bench-clock"

app = Endwell(namespace=os.environ.get(NAMESPACE, "default"))


@app.agent(AGENT)
async def return_number(number: int) -> int:
    """Return the number."""
    return number


@app.agent(STEPS)
async def record_steps(ctx: Context, count: int) -> int:
    """Record this many steps."""
    return sum([await ctx.step("step", _return_one, number) for number in range(count)])


@app.agent(ASKS)
async def ask_outside(ctx: Context) -> int:
    """Wait for an answer from outside, and return it."""
    answer: int = await ctx.tool(TOOL, timeout=600)
    return answer


@app.agent(REPLAYS)
async def time_replay(ctx: Context, count: int) -> float:
    """Record steps, wait, and return how long their replay took."""
    begin = app.runtime.clock.monotonic()
    for number in range(count):
        await ctx.step("step", _return_one, number)
    passed = app.runtime.clock.monotonic() - begin
    await ctx.tool(TOOL, timeout=600)
    return passed


async def _return_one(number: int) -> int:
    return 1
