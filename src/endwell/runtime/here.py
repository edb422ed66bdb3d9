"""Coroutines that run to their end in the caller's own thread, without an event loop.

For code that is written once, asynchronously, and called by scripts as well: where the store can answer
in the caller's thread, stepping into an event loop in another thread would cost more than the answer.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

_IS_HERE: ContextVar[bool] = ContextVar("endwell_is_here", default=False)


def is_here() -> bool:
    """Whether the running code was called by `run_here`: it may block, and must not await a loop."""
    return _IS_HERE.get()


def run_here(coro: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result. It must ask `is_here` before it waits for anything, and block instead."""
    token = _IS_HERE.set(True)
    try:
        coro.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        _IS_HERE.reset(token)
        coro.close()
    raise RuntimeError(f"{coro!r} waits for an event loop, and there is none")
