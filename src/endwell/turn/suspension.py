"""How a turn's function is left in the middle, and how an ending becomes a value.

These are `BaseException`s, so that an agent's `except Exception` does not catch them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Any

from endwell.errors import StaleAttempt
from endwell.model import commands as c
from endwell.policy.waiting import call_size, refuse_too_many

Outcome = tuple[Any, BaseException | None]
"""What something returned, or what it raised."""


async def capture_outcome(awaitable: Awaitable[Any]) -> Outcome:
    """The outcome as a value: an event loop must not see SystemExit, nor a sibling an exception."""
    try:
        return await awaitable, None
    except BaseException as error:
        return None, error


class Suspended(BaseException):
    """The turn waits for answers; its function runs again from the top when they are there.

    `submits` are the tasks that answer some of the calls, created in the same commit.
    """

    def __init__(self, calls: tuple[c.Call, ...], submits: tuple[c.Submit, ...] = ()) -> None:
        super().__init__(f"waiting for {len(calls):,} answers")
        self.calls = calls
        self.submits = submits

    @property
    def content_size(self) -> int:
        """How many bytes of content the calls and the tasks bring."""
        return sum(map(call_size, self.calls)) + sum(len(submit.payload) for submit in self.submits)


class HandedOver(BaseException):
    """The task is in a person's hands: the turn ends without a command."""


class GivenBack(BaseException):
    """The child process could not tell whether it still holds the turn, and gave it back."""


def merge_waits(waiting: list[Suspended]) -> BaseException:
    """One suspension for the waits of several branches; an error if they are too many for a turn."""
    calls = tuple(call for one in waiting for call in one.calls)
    together = Suspended(calls, tuple(submit for one in waiting for submit in one.submits))
    return refuse_too_many(calls, together.content_size) or together


def unwrap_group(error: BaseException) -> BaseException:
    """The exception that an exception group stands for: `asyncio.TaskGroup` wraps what leaves it."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = list(_leaf_errors(error))
    over = next((leaf for leaf in leaves if isinstance(leaf, HandedOver | StaleAttempt)), None)
    waiting = [leaf for leaf in leaves if isinstance(leaf, Suspended)]
    if over is not None:
        return over
    return merge_waits(waiting) if len(waiting) == len(leaves) else error


def _leaf_errors(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaf_errors(error)
        else:
            yield error
