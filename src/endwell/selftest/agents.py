"""The agents of `endwell selftest redis`. What they do outside leaves lines in a file beside the store."""

from __future__ import annotations

import os
from pathlib import Path

from endwell.app import Endwell
from endwell.turn.context import Context

SINK = "ENDWELL_SELFTEST_SINK"
HOLD_SECONDS = 600.0

app = Endwell()


@app.agent("echo")
async def echo(payload: int) -> int:
    """Give it back."""
    return payload


@app.agent("fails")
async def fails() -> None:
    """Never succeeds."""
    raise RuntimeError("as it should")


@app.agent("held")
async def held() -> str:
    """The first time it holds its turn until somebody ends its worker; after that it is quick."""
    if _line("held") == 1:
        await app.runtime.sleep(HOLD_SECONDS)
    return "done"


@app.agent("pays")
async def pays(ctx: Context, order: str) -> int:
    """One effect, whose key is the order's."""
    paid: int = await ctx.effect("pay", _line, f"paid {order}", key=f"pay:{order}")
    return paid


def _line(text: str) -> int:
    """Append a line to the world outside; how many like it there are now."""
    path = Path(os.environ[SINK])
    with open(path, "a") as sink:
        sink.write(f"{text}\n")
    return path.read_text().splitlines().count(text)
