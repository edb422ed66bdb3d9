"""How a turn's function is left in the middle; an agent's `except Exception` does not stop that."""

from __future__ import annotations

from collections.abc import Iterator

from endwell.errors import StaleAttempt
from endwell.model import commands as c
from endwell.policy.waiting import call_size, refuse_too_many


class Suspended(BaseException):
    """The turn waits for answers; its function runs again from the top when they are there.

    `submits` are the tasks that answer some of the calls, created in the same commit.
    """

    def __init__(self, calls: tuple[c.Call, ...], submits: tuple[c.Submit, ...] = ()) -> None:
        super().__init__(f"waiting for {len(calls):,} answers")
        self.calls = calls
        self.submits = submits

    @property
    def size(self) -> int:
        """How many bytes of content the calls and the tasks bring."""
        return sum(map(call_size, self.calls)) + sum(len(submit.payload) for submit in self.submits)


class HandedOver(BaseException):
    """The task is in a person's hands now: the turn ends here, and has nothing to say."""


class GivenBack(BaseException):
    """The child process was not sure that the turn is still its own: another attempt may have it."""


def merged(waiting: list[Suspended]) -> BaseException:
    """What several branches wait for, as one suspension; an error if a turn may not wait for so much."""
    calls = tuple(call for one in waiting for call in one.calls)
    together = Suspended(calls, tuple(submit for one in waiting for submit in one.submits))
    return refuse_too_many(calls, together.size) or together


def meant(error: BaseException) -> BaseException:
    """What an exception group of a turn stands for: `asyncio.TaskGroup` wraps whatever leaves it."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = list(_leaves(error))
    over = next((leaf for leaf in leaves if isinstance(leaf, HandedOver | StaleAttempt)), None)
    waiting = [leaf for leaf in leaves if isinstance(leaf, Suspended)]
    if over is not None:
        return over
    return merged(waiting) if len(waiting) == len(leaves) else error


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
