"""A read that waits at the server until there is something for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from endwell.redis_client import Word


@dataclass(eq=False)
class BlockedRead:
    """`give` is told the answer; `is_over` says that nobody is there any more to be told."""

    key: bytes
    words: Sequence[Word]
    milliseconds: int
    answer: Any = None
    event: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: Callable[[], bool] = lambda: False

    def give(self, answer: Any) -> None:
        """Wake whoever waits."""
        self.answer = answer
        self.event.set()
