"""A thread of its own for questions to SQLite that may take long."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from endwell.runtime.base import Runtime
from endwell.runtime.threads import settle_future


class QuestionThread:
    """Answers one question after the other."""

    def __init__(self, runtime: Runtime, name: str, *, on_closed: Callable[[], None]) -> None:
        self._on_closed = on_closed
        self._is_closed = False
        self._calls: deque[Callable[[], None]] = deque()
        self._attendant = runtime.start_attendant(self._answer_all, name)

    async def ask(self, question: Callable[[], Any]) -> Any:
        """Have the thread answer a question, and wait for the answer."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._calls.append(partial(settle_future, loop, future, question))
        self._attendant.call()
        return await future

    async def close(self) -> None:
        """Answer what was asked, then end the thread."""
        self._is_closed = True
        self._attendant.call()
        await self._attendant.wait_ended()

    def _answer_all(self) -> bool:
        is_last = self._is_closed  # read first: what was asked before the closing is still answered
        while self._calls:
            self._calls.popleft()()
        if is_last:
            self._on_closed()
        return not is_last
