"""A bank whose charges take as long as the test says, made by each sort of call that an effect may be."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import threading
from typing import Any

import anyio.to_thread

from endwell import NOT_DONE, Done, NotDone
from tests.patience import PATIENCE_SECONDS
from tests.support.world import eventually


class Bank:
    """Counts charges, and how many calls were under way at once; a call waits until it is released."""

    def __init__(self) -> None:
        self.charges: list[int] = []
        self.begun = 0
        self.under_way = 0
        self.most_at_once = 0
        self.release = threading.Event()
        self.lock = threading.Lock()

    def charge(self, amount: int = 5) -> str:
        with self.lock:
            self.begun += 1
            self.under_way += 1
            self.most_at_once = max(self.most_at_once, self.under_way)
        self.release.wait(PATIENCE_SECONDS)
        with self.lock:
            self.under_way -= 1
            self.charges.append(amount)
        return f"receipt {len(self.charges)}"

    async def in_default_executor(self, amount: int = 5) -> str:
        return await asyncio.to_thread(self.charge, amount)

    async def in_own_executor(self, amount: int = 5) -> str:
        loop = asyncio.get_running_loop()
        pool = concurrent.futures.ThreadPoolExecutor(1)
        try:
            return await loop.run_in_executor(pool, self.charge, amount)
        finally:
            pool.shutdown(wait=False)

    async def in_an_executor_s_own_submit(self, amount: int = 5) -> str:
        pool = concurrent.futures.ThreadPoolExecutor(1)
        try:
            return await asyncio.wrap_future(pool.submit(self.charge, amount))
        finally:
            pool.shutdown(wait=False)

    async def in_a_thread_of_anyio(self, amount: int = 5) -> str:
        return await anyio.to_thread.run_sync(self.charge, amount, abandon_on_cancel=True)

    async def in_a_thread_of_its_own(self, amount: int = 5) -> str:
        thread = threading.Thread(target=self.charge, args=(amount,))
        thread.start()
        await eventually(lambda: not thread.is_alive())
        return "receipt"

    async def in_a_subprocess(self, amount: int = 5) -> str:
        """Which ends when its standard input is closed, and a thread takes the charge down."""
        process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
        self.begun += 1
        threading.Thread(target=self._close_when_released, args=(process, amount), daemon=True).start()
        await process.wait()
        return "receipt"

    def _close_when_released(self, process: asyncio.subprocess.Process, amount: int) -> None:
        self.release.wait(PATIENCE_SECONDS)
        self.charges.append(amount)
        os.kill(process.pid, signal.SIGTERM)

    def waits_too_briefly_for_an_executor(self, amount: int = 5) -> str:
        pool = concurrent.futures.ThreadPoolExecutor(1)
        waiting = pool.submit(self.charge, amount)
        pool.shutdown(wait=False)
        if not concurrent.futures.wait([waiting], timeout=0.05).done:
            raise ConnectionError("no answer")
        return waiting.result()

    async def gives_up_by_itself(self, amount: int = 5) -> str:
        async with asyncio.timeout(0.05):
            return await asyncio.to_thread(self.charge, amount)

    async def raises_while_a_task_runs(self, amount: int = 5) -> str:
        task = asyncio.create_task(self.slowly(amount))
        await asyncio.wait([task], timeout=0.05)
        raise ConnectionError("no answer") from None

    async def slowly(self, amount: int) -> None:
        await eventually(self.release.is_set)
        self.charge(amount)

    async def says_not_done_too_early(self, amount: int = 5) -> str:
        try:
            return await self.gives_up_by_itself(amount)
        except TimeoutError:
            raise NotDone("gave up waiting") from None

    def find(self, key: str, *args: Any) -> Any:
        return Done("found") if self.charges else NOT_DONE
