"""Branches of `ctx.gather`: parts of a turn that run beside each other, each numbering its own steps."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from endwell.errors import UsageError
from endwell.runtime.thread_call import ThreadCall
from endwell.turn.recorder import Recorder
from endwell.turn.step_ids import BRANCH
from endwell.turn.suspension import HandedOver, Outcome, Suspended, capture_outcome, merge_waits

Branch = Callable[[], Awaitable[Any]]


async def run_branches(recorder: Recorder, branches: Sequence[Branch]) -> list[Any]:
    """What all branches return, in order, once each has returned, failed or come to a wait."""
    path, has_returned = recorder.ids.begin_gather(), False
    try:
        tasks = [
            recorder.runtime.spawn(
                _run_branch(f"{path}.{index}", branch), f"{recorder.task.id}({path}.{index})"
            )
            for index, branch in enumerate(branches)
        ]
        values = _merge_outcomes(recorder, [await task for task in await _wait_for_all(tasks)])
        has_returned = True
        return values
    finally:
        recorder.ids.end_gather(path, has_returned=has_returned)


async def _run_branch(path: str, branch: Branch) -> Outcome:
    BRANCH.set(path)  # in the context of this asyncio task and of what it starts
    return await capture_outcome(branch())


async def _wait_for_all(tasks: list[asyncio.Task[Outcome]]) -> list[asyncio.Task[Outcome]]:
    """Wait for all branches; a gather that is cancelled cancels them."""
    try:
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
    return tasks


def _merge_outcomes(recorder: Recorder, outcomes: list[Outcome]) -> list[Any]:
    errors = [error for _, error in outcomes if error is not None]
    waiting = [error for error in errors if isinstance(error, Suspended)]
    failed = [error for error in errors if not isinstance(error, Suspended)]
    if failed:
        for wait in waiting:
            recorder.drop_wait(wait)
        raise next((error for error in failed if isinstance(error, HandedOver)), failed[0])
    if waiting:
        raise merge_waits(waiting)
    return [value for value, _ in outcomes]


def async_branches(parts: Sequence[Any]) -> list[Branch]:
    """Branches of an `async def` agent: verbs that were not awaited, and functions of no argument."""
    wrong = next((part for part in parts if not (inspect.iscoroutine(part) or callable(part))), None)
    if wrong is None:
        return [_async_branch(part) for part in parts]
    for part in parts:
        if inspect.iscoroutine(part):
            part.close()  # or Python would complain that it was never awaited
    raise UsageError(
        f"ctx.gather takes verbs that were not awaited, or functions, not {type(wrong).__name__}",
        hint="for example ctx.gather(ctx.step(...), ctx.step(...))",
    )


def _async_branch(part: Any) -> Branch:
    if inspect.iscoroutine(part):
        return lambda: part

    async def run() -> Any:
        value = part()
        return await value if inspect.isawaitable(value) else value

    return run


def thread_branches(recorder: Recorder, parts: Sequence[Any]) -> list[Branch]:
    """Branches of a `def` agent: functions of no argument, each for a thread of its own."""
    wrong = next((part for part in parts if not callable(part)), None)
    if wrong is not None:
        raise UsageError(
            f"ctx.gather of a def agent takes functions of no argument, not {type(wrong).__name__}",
            hint="for example ctx.gather(lambda: ctx.step(...), lambda: ctx.step(...))",
        )
    return [partial(recorder.threads.run, ThreadCall(part)) for part in parts]
