"""The effects that one turn carries out, each in an asyncio task of its own.

Leaving the wait for an effect, by `asyncio.wait_for` say, does not end it: it is carried out and recorded,
and the agent that asks for it again, in whichever branch, gets its outcome. So it is with the effects of a
gather that raised: the agent did not get what they came to. When the turn ends, what is left is cancelled.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from endwell.runtime.base import Runtime
from endwell.turn.captured import Ended, captured


class EffectAsk(NamedTuple):
    """One effect that the agent asked for: in which branch, by which name and call, and which step it is."""

    branch: str
    name: str
    call: str
    step: str


class EffectRuns:
    """By the identity of their steps. An outcome is kept until it has surely reached the agent."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._runs: dict[str, asyncio.Task[Ended]] = {}
        self._returned: set[str] = set()
        self._left: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self._in_gathers: list[EffectAsk] = []

    def rejoined(self, name: str, call: str) -> str | None:
        """The step of an effect that was asked for like this, and whose outcome the agent did not get."""
        left = self._left.get((name, call))
        return left.pop(0) if left else None

    async def outcome(self, step: str, start: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """What the effect comes to; the one that is under way is joined, never begun again beside itself."""
        run = self._runs.get(step)
        if run is None:
            run = self._runs[step] = self._runtime.start(captured(start()), f"endwell-effect-{step}")
        value, error = await asyncio.shield(run)
        if error is not None:
            self._runs.pop(step, None)
            raise error
        self._returned.add(step)
        return value

    def end_ask(self, asked: EffectAsk) -> None:
        """The verb is over: it was left, or it returned or raised, perhaps into a gather that goes on."""
        if asked.step in self._runs and asked.step not in self._returned:
            self._left[asked.name, asked.call].append(asked.step)
        elif asked.branch:
            self._in_gathers.append(asked)
        else:
            self._forget(asked.step)

    def end_gather(self, path: str, *, is_outermost: bool, has_returned: bool) -> None:
        """A gather is over; what was asked for inside of it is asked for again if it raised."""
        if has_returned and not is_outermost:
            return
        known, self._in_gathers = self._in_gathers, []
        for asked in known:
            if not asked.branch.startswith(f"{path}."):
                self._in_gathers.append(asked)
            elif has_returned:
                self._forget(asked.step)
            else:
                self._left[asked.name, asked.call].append(asked.step)

    def _forget(self, step: str) -> None:
        self._runs.pop(step, None)
        self._returned.discard(step)

    def cancel(self) -> None:
        """Stop all of them, as far as they can be stopped."""
        for run in self._runs.values():
            run.cancel()

    async def close(self) -> None:
        """Stop all of them, and wait until each has said what is known of its effect."""
        self.cancel()
        if self._runs:
            await asyncio.wait(self._runs.values())
