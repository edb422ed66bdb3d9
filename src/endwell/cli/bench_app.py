"""The one agent of `endwell bench`: it only returns what it was given, so that the result can be checked."""

from __future__ import annotations

import os

from endwell.app import Endwell

NAMESPACE = "ENDWELL_BENCH_NAMESPACE"
AGENT = "noop"

app = Endwell(namespace=os.environ.get(NAMESPACE, "default"))


@app.agent(AGENT)
async def noop(number: int) -> int:
    """Give the number back."""
    return number
