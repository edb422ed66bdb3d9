"""What an agent does in a row: the worker counts, the machine judges (`policy/progress.py`).

The same call is the same step, tool or agent with the same arguments. A step must also have come to the same
result, and be a plain function: a lambda may be given anything by closure. Branches of a gather count apart,
and an error that they meet beside each other counts once.
Recorded calls that a run passes again count too: that is how a row is known after the turn was suspended.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from endwell.errors import StaleAttempt, TurnError
from endwell.model import commands as c
from endwell.model import content
from endwell.policy.limits import SECOND
from endwell.policy.progress import RepeatLimits

if TYPE_CHECKING:
    from endwell.turn.recorder import Recorder

TEXT_LIMIT = 200
Given = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a step whose function is nothing but its code."""


class RepeatGuard:
    """One per turn."""

    def __init__(self, bench: Recorder) -> None:
        self._bench = bench
        self._calls = RepeatLimits(bench.limits.repeat_limit)
        self._errors = RepeatLimits(bench.limits.repeat_limit)
        self._place = ""
        self._inputs: str | None = None
        self._variant = 0
        self._news_at = bench.runtime.clock.monotonic()
        self._note: str | None = None
        self._draft = ""

    def news(self) -> None:
        """Something new was recorded."""
        self._news_at = self._bench.runtime.clock.monotonic()

    def drafted(self, digest: str) -> None:
        """A draft was kept; the same one again is no news."""
        if digest != self._draft:
            self.news()
        self._draft = digest

    def without_news(self, note: str | None) -> int:
        """For how long nothing new came of it. A step under way is waited for; a new note is news."""
        if self._bench.doing or (note is not None and note != self._note):
            self.news()
        self._note = note
        return int((self._bench.runtime.clock.monotonic() - self._news_at) * SECOND)

    async def stepped(
        self, branch: str, name: str, given: Given | None, digest: str, *, is_new: bool
    ) -> None:
        """A step came to a result."""
        is_due = self._calls.note(self._what(f"{branch} {name} {digest}", given))
        self._errors.begin_anew()
        if is_new:
            self.news()
        if is_due and is_new:
            await self._report(f"the step {name} with the same arguments", self._calls.count)

    def _what(self, place: str, given: Given | None) -> str | None:
        """What a step was, as one text. Its arguments count only if it came to the same as the last one."""
        inputs = _digest(given) if given is not None and place == self._place else None
        is_same = place == self._place and inputs is not None and self._inputs in (None, inputs)
        self._variant += not is_same
        self._place, self._inputs = place, inputs
        return None if given is None else f"{place} {self._variant}"

    async def called(self, branch: str, name: str, arguments: Any, *, is_new: bool) -> None:
        """A tool or another agent is asked for something, or was."""
        self._place = ""
        digest = _digest(arguments)
        is_due = self._calls.note(None if digest is None else f"{branch} ask {name} {digest}")
        if is_due and is_new:
            await self._report(f"the call of {name} with the same arguments", self._calls.count)

    def waited(self) -> None:
        """The turn waits for something that it names, or changes something: whatever follows is a new row."""
        self._place = ""
        self._calls.begin_anew()
        self._errors.begin_anew()

    async def failed(self, branch: str, name: str, error: BaseException) -> None:
        """A step, tool or agent ended with an error that the agent's code now sees."""
        await self.erred(branch, name, f"{type(error).__name__}: {content.safe_str(error)}")

    async def erred(self, branch: str, name: str, text: str) -> None:
        """Something went wrong, in these words."""
        said = content.clean_text(text, TEXT_LIMIT)
        if self._errors.note(f"{name} {said}", branch):
            await self._report(f"the same error of {name} ({said})", self._errors.count)

    async def _report(self, about: str, count: int) -> None:
        bench = self._bench
        reply = await bench.commit(bench.command(c.Repeat, about=about, count=count))
        bench.refuse_ended(reply)


def given_of(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given | None:
    """What a step is given, if that can be told: not of a lambda, a partial or an object with a state."""
    is_plain = (
        inspect.isfunction(function) and function.__closure__ is None and function.__name__ != "<lambda>"
    )
    return (args, kwargs) if is_plain else None


def _digest(value: Any) -> str | None:
    """Nothing for what is not JSON: such arguments cannot be compared, so they are never the same."""
    try:
        return content.fingerprint(content.encode(value, what="arguments"))
    except Exception:  # an object may raise anything while it is looked at
        return None


def stopped(task_id: str, attempt_id: str) -> StaleAttempt:
    """The machine has ended the task under the agent."""
    return StaleAttempt(f"attempt {attempt_id} no longer holds its task", task_id=task_id)


def is_worth_counting(error: BaseException) -> bool:
    """What the agent's own code may catch and go on from."""
    return isinstance(error, Exception) and not (isinstance(error, StaleAttempt) or _is_asked_for(error))


def _is_asked_for(error: BaseException) -> bool:
    return isinstance(error, TurnError) and error.code in ("ambiguous_step", "replay_mismatch")
