"""Coroutines in the caller's own thread: for code that blocks instead of waiting for a loop."""

from __future__ import annotations

import asyncio

import pytest

from endwell.runtime.here import is_here, run_here


async def _where() -> bool:
    return is_here()


async def _failing() -> None:
    raise LookupError("nothing there")


def test_a_coroutine_runs_to_its_end_in_the_callers_thread() -> None:
    assert run_here(_where()) is True


def test_its_error_is_the_callers() -> None:
    with pytest.raises(LookupError, match="nothing there"):
        run_here(_failing())
    assert not is_here()


def test_one_that_waits_for_a_loop_is_refused() -> None:
    with pytest.raises(RuntimeError, match="there is none"):
        run_here(asyncio.sleep(0))


async def test_code_on_a_loop_is_not_here_even_beside_such_a_call() -> None:
    assert run_here(_where())
    assert not await asyncio.create_task(_where())
