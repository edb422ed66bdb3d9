"""The example programs of foreign workers, as processes that end with the test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.streams.streamed import Streamed
from tests.support.world import eventually

EXAMPLES = Path(__file__).parents[2] / "examples" / "foreign"


class Programs:
    """Processes that end with the test."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(words, env={**os.environ, "HEARTBEAT_INTERVAL_S": "0.2"})
        self.started.append(process)
        return process


async def known(streamed: Streamed, tool: str) -> None:
    """Wait until the store knows a tool that only a foreign worker serves."""

    async def is_known() -> bool:
        return await streamed.world.store.agent(streamed.world.namespace, tool) is not None

    await eventually(is_known, f"{tool} is registered")
