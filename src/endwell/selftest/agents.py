"""The agents of `endwell selftest redis`. Their effects leave lines in a file beside the store."""

from __future__ import annotations

import os
from pathlib import Path

from endwell.app import Endwell
from endwell.turn.context import Context

SINK = "ENDWELL_SELFTEST_SINK"
HOLD_SECONDS = 600.0

app = Endwell()


@app.agent("echo")
async def return_payload(payload: int) -> int:
    """Return the payload."""
    return payload


@app.agent("fails")
async def always_fail() -> None:
    """Never succeeds."""
    raise RuntimeError("as it should")


@app.agent("held")
async def hold_once() -> str:
    """Hold the turn the first time, until its worker is killed; then return at once."""
    if _append_line("held") == 1:
        await app.runtime.sleep(HOLD_SECONDS)
    return "done"


@app.agent("pays")
async def pay_once(ctx: Context, order: str) -> int:
    """One effect, whose key is the order's."""
    paid: int = await ctx.effect("pay", _append_line, f"paid {order}", key=f"pay:{order}")
    return paid


def _append_line(text: str) -> int:
    """Append a line to the sink; return how many equal lines it has now."""
    path = Path(os.environ[SINK])
    with open(path, "a") as sink:
        sink.write(f"{text}\n")
    return path.read_text().splitlines().count(text)
