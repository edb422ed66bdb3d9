"""Branches: parts of a turn that run beside each other, each numbering its own steps."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from endwell.errors import UsageError
from endwell.runtime.thread_call import ThreadCall
from endwell.turn.captured import Ended, captured
from endwell.turn.recorder import BRANCH, Recorder
from endwell.turn.suspension import HandedOver, Suspended, merged

Part = Callable[[], Awaitable[Any]]


async def gathered(bench: Recorder, parts: Sequence[Part]) -> list[Any]:
    """What all parts return, in order, once each has returned, failed or come to a wait."""
    path, has_returned = bench.begin_gather(), False
    try:
        tasks = [
            bench.runtime.spawn(_in_branch(f"{path}.{index}", part), f"{bench.task.id}({path}.{index})")
            for index, part in enumerate(parts)
        ]
        values = _together(bench, [await task for task in await _all_ended(tasks)])
        has_returned = True
        return values
    finally:
        bench.end_gather(path, has_returned=has_returned)


async def _in_branch(path: str, part: Part) -> Ended:
    BRANCH.set(path)  # of this asyncio task and whatever it starts
    return await captured(part())


async def _all_ended(tasks: list[asyncio.Task[Ended]]) -> list[asyncio.Task[Ended]]:
    """A gather that is cancelled takes its parts with it."""
    try:
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
    return tasks


def _together(bench: Recorder, ends: list[Ended]) -> list[Any]:
    errors = [error for _, error in ends if error is not None]
    waiting = [error for error in errors if isinstance(error, Suspended)]
    failed = [error for error in errors if not isinstance(error, Suspended)]
    if failed:
        for one in waiting:
            bench.drop_wait(one)
        raise next((error for error in failed if isinstance(error, HandedOver)), failed[0])
    if waiting:
        raise merged(waiting)
    return [value for value, _ in ends]


def async_parts(parts: Sequence[Any]) -> list[Part]:
    """What an `async def` agent may gather: verbs that were not awaited, and functions of no argument."""
    wrong = next((part for part in parts if not (inspect.iscoroutine(part) or callable(part))), None)
    if wrong is None:
        return [_part(part) for part in parts]
    for part in parts:
        if inspect.iscoroutine(part):
            part.close()  # or Python would complain that it was never awaited
    raise UsageError(
        f"ctx.gather takes verbs that were not awaited, or functions, not {type(wrong).__name__}",
        hint="for example ctx.gather(ctx.step(...), ctx.step(...))",
    )


def _part(part: Any) -> Part:
    if inspect.iscoroutine(part):
        return lambda: part

    async def run() -> Any:
        value = part()
        return await value if inspect.isawaitable(value) else value

    return run


def thread_parts(bench: Recorder, parts: Sequence[Any]) -> list[Part]:
    """What a `def` agent may gather: functions of no argument, each for a thread of its own."""
    wrong = next((part for part in parts if not callable(part)), None)
    if wrong is not None:
        raise UsageError(
            f"ctx.gather of a def agent takes functions of no argument, not {type(wrong).__name__}",
            hint="for example ctx.gather(lambda: ctx.step(...), lambda: ctx.step(...))",
        )
    return [partial(bench.threads.run, ThreadCall(part)) for part in parts]
