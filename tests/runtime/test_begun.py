"""What runs at once up to its first wait goes on from there as if it had been awaited all along."""

from __future__ import annotations

import asyncio

import pytest

from endwell.runtime.begun import Begun


async def test_what_never_waits_is_over_at_once() -> None:
    async def answer() -> int:
        return 42

    begun = Begun(answer())

    assert begun.is_over
    assert begun.value == 42


async def test_what_waits_goes_on_when_it_is_awaited() -> None:
    gate = asyncio.Event()
    seen: list[str] = []

    async def walk() -> str:
        seen.append("begun")
        await gate.wait()
        await asyncio.sleep(0)
        seen.append("went on")
        return "there"

    begun = Begun(walk())
    assert (begun.is_over, seen) == (False, ["begun"])
    asyncio.get_running_loop().call_soon(gate.set)

    assert await begun == "there"
    assert seen == ["begun", "went on"]


async def test_an_error_comes_out_where_it_happens() -> None:
    async def fail(first: bool) -> None:
        if not first:
            await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        Begun(fail(True))
    begun = Begun(fail(False))
    with pytest.raises(ValueError, match="broken"):
        await begun


async def test_a_time_limit_reaches_into_it() -> None:
    cleaned = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    begun = Begun(hang())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await begun
    assert cleaned.is_set()


async def test_it_may_wait_for_anything_that_can_be_awaited() -> None:
    future = asyncio.get_running_loop().create_future()
    begun = Begun(future)
    asyncio.get_running_loop().call_soon(future.set_result, "done")

    assert await begun == "done"
