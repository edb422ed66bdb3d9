"""Counts what an agent repeats; the machine judges the count (`policy/progress.py`).

The same call is the same step, tool or agent with the same arguments. A step must also have the same result
and be a plain function, because a lambda may be given anything by closure. Branches of a gather count apart;
an error that several branches meet beside each other counts once. Recorded calls that the function passes
again count too, so a row is known after the turn was suspended.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from endwell.errors import StaleAttempt, TurnError
from endwell.model import content
from endwell.model.moments import SECOND
from endwell.policy.progress import RepeatLimits
from endwell.runtime.clock import Clock
from endwell.turn.step_ids import BRANCH

TEXT_LIMIT = 200
GivenArguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a step whose function is nothing but its code."""


class RepeatReport(NamedTuple):
    """What the machine is to judge: what was repeated, and how often in a row."""

    about: str
    times: int


class RepeatGuard:
    """The rows of one turn. A method returns a report when a row is long enough to be judged."""

    def __init__(self, limit: int | None, clock: Clock) -> None:
        self._calls = RepeatLimits(limit)
        self._errors = RepeatLimits(limit)
        self._clock = clock
        self._place = ""
        self._inputs: str | None = None
        self._variant = 0
        self._news_at = clock.monotonic()
        self._note: str | None = None
        self._draft = ""

    def note_news(self) -> None:
        """Something new was recorded."""
        self._news_at = self._clock.monotonic()

    def note_draft(self, digest: str) -> None:
        """A draft was kept; the same one again is not new."""
        if digest != self._draft:
            self.note_news()
        self._draft = digest

    def quiet_us(self, note: str | None, *, is_in_step: bool) -> int:
        """Microseconds since something new was recorded; a step under way and a new note count as new."""
        if is_in_step or (note is not None and note != self._note):
            self.note_news()
        self._note = note
        return int((self._clock.monotonic() - self._news_at) * SECOND)

    def on_step(
        self, name: str, given: GivenArguments | None, digest: str, *, is_new: bool
    ) -> RepeatReport | None:
        """A step has a result, recorded just now (`is_new`) or before."""
        is_due = self._calls.count_repeat(self._step_text(f"{BRANCH.get()} {name} {digest}", given))
        self._errors.start_row()
        if is_new:
            self.note_news()
        if is_due and is_new:
            return RepeatReport(f"the step {name} with the same arguments", self._calls.count)
        return None

    def _step_text(self, place: str, given: GivenArguments | None) -> str | None:
        """One text for equal steps. Arguments are compared only if the result equals the last one."""
        inputs = _arguments_digest(given) if given is not None and place == self._place else None
        is_same = place == self._place and inputs is not None and self._inputs in (None, inputs)
        if not is_same:
            self._variant += 1
        self._place, self._inputs = place, inputs
        return None if given is None else f"{place} {self._variant}"

    def on_call(self, name: str, arguments: Any, *, is_new: bool) -> RepeatReport | None:
        """A tool or another agent is called, or was."""
        self._place = ""
        digest = _arguments_digest(arguments)
        is_due = self._calls.count_repeat(None if digest is None else f"{BRANCH.get()} ask {name} {digest}")
        if is_due and is_new:
            return RepeatReport(f"the call of {name} with the same arguments", self._calls.count)
        return None

    def on_wait(self) -> None:
        """The turn waits for something it names: the rows begin again."""
        self._place = ""
        self._calls.start_row()
        self._errors.start_row()

    def on_effect(self) -> None:
        """The turn changes the outside world, which is news."""
        self.on_wait()
        self.note_news()

    def on_exception(self, name: str, error: BaseException) -> RepeatReport | None:
        """A step, tool or agent raised an error that the agent's code now sees."""
        return self.on_error(name, f"{type(error).__name__}: {content.safe_str(error)}")

    def on_error(self, name: str, text: str) -> RepeatReport | None:
        said = content.clean_text(text, TEXT_LIMIT)
        if self._errors.count_repeat(f"{name} {said}", BRANCH.get()):
            return RepeatReport(f"the same error of {name} ({said})", self._errors.count)
        return None


def comparable_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> GivenArguments | None:
    """The arguments of a plain function; None for a lambda, a partial or an object with a state."""
    is_plain = (
        inspect.isfunction(function) and function.__closure__ is None and function.__name__ != "<lambda>"
    )
    return (args, kwargs) if is_plain else None


def _arguments_digest(value: Any) -> str | None:
    """None for what is not JSON: it cannot be compared, so it never counts as equal."""
    try:
        return content.fingerprint(content.encode(value, what="arguments"))
    except Exception:  # an object may raise anything while it is looked at
        return None


def is_countable(error: BaseException) -> bool:
    """Whether the agent's own code may catch this error and continue."""
    is_misuse = isinstance(error, TurnError) and error.code in ("ambiguous_step", "replay_mismatch")
    return isinstance(error, Exception) and not (isinstance(error, StaleAttempt) or is_misuse)
