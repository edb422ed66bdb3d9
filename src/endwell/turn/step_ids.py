"""The identities of a turn's steps, and the effects that are still under way.

A step keeps its identity when the function runs again, because branches count their own steps. An effect that
the agent stopped waiting for, by `asyncio.wait_for` or because its gather raised, is carried out and recorded
all the same; asking for the same call again joins it. When the turn ends, what is left is cancelled.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from endwell.errors import AmbiguousStep, BadInput
from endwell.model.effect import step_place
from endwell.runtime.base import Runtime
from endwell.turn.suspension import Outcome, Suspended, capture_outcome

NAME_LIMIT = 200
BRANCH: ContextVar[str] = ContextVar("endwell_branch", default="")
"""The path of the running branch: the number of its gather, then of its part, and so on inwards."""


class StepIds:
    """Gives each step of a run its identity: run, branch, name, number."""

    def __init__(self, run: int, effects: EffectRuns) -> None:
        self._run = run
        self._effects = effects
        self._numbers: Counter[str] = Counter()
        self._in_flight: set[str] = set()
        self._rejoined: dict[str, str] = {}
        self._waiting: set[str] = set()
        self._ambiguous: AmbiguousStep | None = None

    @contextmanager
    def step(self, name: str, call: str = "") -> Iterator[str]:
        """The next step of this name, in flight for the time of the block."""
        step = self.begin_step(name, call)
        try:
            yield step
        finally:
            self.end_step(step, call)

    def begin_step(self, name: str, call: str = "") -> str:
        """The identity of the next step of this name.

        With `call`, an effect that is still under way for the same call keeps its identity.
        """
        _check_name(name)
        place = f"({BRANCH.get()}){name}"
        if place in self._in_flight:
            raise self._refuse_second(name, place)
        self._in_flight.add(place)
        rejoined = self._effects.rejoin_effect(name, call) if call else None
        if rejoined is not None:
            self._rejoined[rejoined] = place
            return rejoined
        self._numbers[place] += 1
        return f"{self._run}:{place}#{self._numbers[place]}"

    def _refuse_second(self, name: str, place: str) -> AmbiguousStep:
        error = AmbiguousStep(
            f"two steps named {name!r} at once: after a crash nothing could tell which is which",
            hint="give them different names, or run them in the branches of ctx.gather(...)",
        )
        if place in self._waiting:
            self._ambiguous = error
        return error

    def end_step(self, step: str, call: str = "") -> None:
        """The verb is over, unless it waits; its effect may still be under way."""
        place = self._rejoined.pop(step, None) or _place_of(step)
        if place not in self._waiting:
            self._in_flight.discard(place)
        if call:
            branch, _, name = place.removeprefix("(").partition(")")
            self._effects.end_ask(EffectAsk(branch, name, call, step))

    def note_wait(self, step: str) -> None:
        """The turn will wait for this step, so its name stays in flight until the function runs again."""
        self._waiting.add(_place_of(step))

    def error_of(self, error: BaseException) -> BaseException:
        """The error that a turn ends with: `AmbiguousStep` if it waits for one of two steps of one name.

        Code that asked for both at once may have seen only that the first one waits.
        """
        return self._ambiguous or error if isinstance(error, Suspended) else error

    def begin_gather(self) -> str:
        """The path of the next gather of this branch."""
        branch = BRANCH.get()
        place = f"({branch})"
        if place in self._in_flight:
            raise AmbiguousStep(
                "two gathers at once: after a crash nothing could tell which is which",
                hint="put all parts into one ctx.gather(...), or one gather inside another",
            )
        self._in_flight.add(place)
        self._numbers[place] += 1
        return f"{branch},{self._numbers[place]}" if branch else str(self._numbers[place])

    def end_gather(self, path: str, *, has_returned: bool) -> None:
        """The gather has returned or raised."""
        branch = path.rpartition(",")[0]
        self._in_flight.discard(f"({branch})")
        self._effects.end_gather(path, is_outermost=not branch, has_returned=has_returned)


class EffectAsk(NamedTuple):
    """One `ctx.effect(...)`: the branch it is in, its name, its call, and its step."""

    branch: str
    name: str
    call: str
    step: str


class EffectRuns:
    """The effects of one turn, each in an asyncio task of its own, by their steps.

    The outcome of an effect is kept until it has surely reached the agent.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._runs: dict[str, asyncio.Task[Outcome]] = {}
        self._returned: set[str] = set()
        self._left: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self._in_gathers: list[EffectAsk] = []

    def rejoin_effect(self, name: str, call: str) -> str | None:
        """The step of an effect with this name and call whose outcome has not reached the agent."""
        left = self._left.get((name, call))
        return left.pop(0) if left else None

    async def outcome(self, step: str, start: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """What the effect comes to; starts it unless it is under way."""
        run = self._runs.get(step)
        if run is None:
            run = self._runs[step] = self._runtime.start(capture_outcome(start()), f"endwell-effect-{step}")
        value, error = await asyncio.shield(run)
        if error is not None:
            self._runs.pop(step, None)
            raise error
        self._returned.add(step)
        return value

    def end_ask(self, ask: EffectAsk) -> None:
        """The verb was left, or returned or raised, perhaps into a gather that is still running."""
        if ask.step in self._runs and ask.step not in self._returned:
            self._left[ask.name, ask.call].append(ask.step)
        elif ask.branch:
            self._in_gathers.append(ask)
        else:
            self._forget(ask.step)

    def end_gather(self, path: str, *, is_outermost: bool, has_returned: bool) -> None:
        """If the gather raised, the outcomes of its effects have not reached the agent."""
        if has_returned and not is_outermost:
            return
        known, self._in_gathers = self._in_gathers, []
        for ask in known:
            if not ask.branch.startswith(f"{path}."):
                self._in_gathers.append(ask)
            elif has_returned:
                self._forget(ask.step)
            else:
                self._left[ask.name, ask.call].append(ask.step)

    def _forget(self, step: str) -> None:
        self._runs.pop(step, None)
        self._returned.discard(step)

    def cancel(self) -> None:
        for run in self._runs.values():
            run.cancel()

    async def close(self) -> None:
        """Cancel all effects and wait until each has recorded what is known of it."""
        self.cancel()
        if self._runs:
            await asyncio.wait(self._runs.values())


def _place_of(step: str) -> str:
    """A step's branch and name, without its number."""
    return step_place(step).rpartition("#")[0]


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or len(name) > NAME_LIMIT or not name.isprintable():
        raise BadInput(
            f"a step's name must be printable text of 1 to {NAME_LIMIT} characters",
            code="bad_step_name",
            field="name",
        )
