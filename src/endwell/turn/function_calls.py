"""Calling the functions of steps: within their time, off the event loop, their values kept as JSON."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec

from endwell.errors import BadInput, ReplayMismatch, StepFailed, StepTimeout, TurnError, UsageError
from endwell.model import content
from endwell.model.card import Card
from endwell.model.task import ErrorInfo
from endwell.model.typed import Shape, is_async, result_of
from endwell.policy import ledger
from endwell.policy.limits import SECOND
from endwell.policy.retry import RetryPolicy, backoff
from endwell.runtime.base import Runtime
from endwell.runtime.running_calls import CURRENT_CALL
from endwell.runtime.thread_call import ThreadCall
from endwell.turn.recorder import Recorder
from endwell.turn.threads import TurnThreads

Duration = float | timedelta
Tries = int | RetryPolicy | None
MOST_CALLS = 1_000
_CUT_SHORT_NAMES = ("timeout", "timedout", "cancel", "deadline")
_CUT_SHORT_TEXTS = ("timeout", "timed out", "time out", "deadline exceeded")
_TEXT_LIMIT = 1_000
_FUNCTION_LIMIT = 100

_error_decoder = msgspec.json.Decoder(ErrorInfo)


class FunctionCall:
    """A function with its arguments, how long it may take, and what it must return."""

    __slots__ = ("_call", "_is_async", "name", "seconds", "shape")

    def __init__(self, name: str, fn: Callable[..., Any], call: Callable[[], Any], seconds: float) -> None:
        self.name = name
        self.seconds = seconds
        self.shape = _ANYTHING
        self._call = call
        self._is_async = is_async(fn)

    @classmethod
    def of(
        cls, name: str, fn: Callable[..., Any], call: Callable[[], Any], seconds: float, result: Any
    ) -> FunctionCall:
        """With the shape of what it returns: as said, or as the function is annotated."""
        if not callable(fn):
            raise UsageError(f"step {name!r}: {content.safe_repr(fn, 60)} is not a function")
        work = cls(name, fn, call, seconds)
        work.shape = result_of(fn) if result is None else Shape.of(result)
        return work

    async def run(
        self, runtime: Runtime, threads: TurnThreads, *, before: Callable[[], None] | None = None
    ) -> Any:
        """What it returns; `StepTimeout` when that takes too long, and what comes later is discarded.

        `before` is called immediately before the function, where the function is.
        """
        call = self._call if before is None else partial(_after, before, self._call)
        scope = runtime.timeout(self.seconds)
        try:
            async with scope:
                value = await (call() if self._is_async else self._in_thread(threads, call))
        except TimeoutError:
            if not scope.expired():
                raise  # the function's own
            raise self._late() from None
        if scope.expired():
            raise self._late()
        return value

    async def _in_thread(self, threads: TurnThreads, call: Callable[[], Any]) -> Any:
        thread, running = ThreadCall(call), CURRENT_CALL.get()
        if running is not None:
            running.add(lambda: thread.is_open)
        value = await threads.run(thread)
        return await value if inspect.isawaitable(value) else value

    def _late(self) -> StepTimeout:
        return StepTimeout(f"step {self.name!r} took longer than {self.seconds:g} s")

    def encoded(self, value: Any) -> bytes:
        """The value as it is kept."""
        return content.encode(value, what=f"result of step {self.name}")

    def checked(self, encoded: bytes) -> Any:
        """What was kept, as the declared type: the first run and every later one see the same."""
        try:
            return self.shape.check(content.decode_stored(encoded), f"result of step {self.name}")
        except BadInput as refusal:
            raise TurnError(refusal.message, code="bad_step_result", hint=refusal.hint) from refusal

    def replayed(self, encoded: bytes) -> Any:
        """The same for a record; if it does not fit, the code has changed since."""
        try:
            return self.checked(encoded)
        except TurnError as refusal:
            raise ReplayMismatch(
                f"what step {self.name!r} recorded does not fit any more: {refusal.message}",
                hint="steps that have run keep their types; give the changed step a new name",
            ) from refusal


def has_ended_by_itself(error: BaseException) -> bool:
    """Whether a function that raised this has surely ended: no timeout and no cancellation led to it."""
    seen: list[BaseException] = []
    found: list[object] = [error]
    while found:
        one = found.pop()
        if not isinstance(one, BaseException) or any(one is other for other in seen):
            continue
        if _is_cut_short(one):
            return False
        seen.append(one)
        found += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return True


def _is_cut_short(error: BaseException) -> bool:
    """Clients have errors of their own for it: some say it by their name only, some by their text only."""
    names = " ".join(kind.__name__ for kind in type(error).__mro__).lower()
    text = content.safe_str(error, _TEXT_LIMIT).lower().replace("_", " ")
    return any(word in names for word in _CUT_SHORT_NAMES) or any(word in text for word in _CUT_SHORT_TEXTS)


def _after(before: Callable[[], None], call: Callable[[], Any]) -> Any:
    before()
    return call()


_ANYTHING = Shape.of(Any)


def bound(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    """The call without arguments."""
    return partial(fn, *args, **kwargs) if args or kwargs else fn


def inputs_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Equal inputs have equal fingerprints."""
    return content.fingerprint(content.encode([args, kwargs], what=f"inputs of step {name}"))


def seconds_of(duration: Duration | None, default: float, what: str = "timeout") -> float:
    """A duration in seconds; above zero and finite."""
    if duration is None:
        return default
    seconds: object = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, (int, float)) and math.isfinite(seconds) and seconds > 0:
        return float(seconds)
    raise UsageError(f"{what} must be a number of seconds above zero, or a timedelta")


class CheckedValue(msgspec.Struct, frozen=True):
    """The content of a `step.checked` card: a value, and the fingerprint of what it was computed from."""

    inputs: str
    value: msgspec.Raw


_checked_decoder = msgspec.json.Decoder(CheckedValue)


def tries_of(bench: Recorder, retry: Tries) -> RetryPolicy:
    """How often a step is tried: a number counts every call, the first one too."""
    if isinstance(retry, RetryPolicy):
        return retry
    calls: object = 1 if retry is None else retry
    if isinstance(calls, int) and 1 <= calls <= MOST_CALLS:
        return msgspec.structs.replace(bench.limits.retry, max_retries=calls - 1)
    raise UsageError(f"retry must be a number of calls from 1 to {MOST_CALLS:,}, or a RetryPolicy")


async def pause_before(bench: Recorder, step: str, policy: RetryPolicy, number: int) -> None:
    """The backoff before retry `number` of a step; the turn need show no progress meanwhile."""
    seconds = backoff(policy, number, bench.runtime.ids.fraction()) / SECOND
    await bench.expect(step, seconds)
    await bench.runtime.sleep(seconds)


def call_of(name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What one call of an effect is known by: its arguments, also those of a `partial`, and its function."""
    given: list[Any] = [args, kwargs]
    while isinstance(fn, partial):
        given += [part for part in (list(fn.args), fn.keywords) if part and _is_content(part)]
        fn = fn.func
    function = "".join(filter(str.isprintable, str(getattr(fn, "__name__", type(fn).__name__))))
    inputs = content.fingerprint(content.encode(given, what=f"inputs of step {name}"))
    return ledger.named_call(inputs, function[:_FUNCTION_LIMIT])


def _is_content(value: Any) -> bool:
    """Whether it can be compared: a `partial` may bind clients and other objects too."""
    try:
        content.encode(value, what="arguments")
    except Exception:  # an object may raise anything while it is looked at
        return False
    return True


def recorded_call(card: Card) -> str:
    """The call whose result a record keeps; empty where an older release did not keep it."""
    if card.kind == "step.checked":
        return _checked_decoder.decode(card.content).inputs
    if card.kind == "step.reference":
        return str(msgspec.json.decode(card.content).get("inputs", ""))
    return ""


async def replayed(bench: Recorder, work: FunctionCall, card: Card, inputs: str = "") -> Any:
    """What a record says: a value, or that the step failed for good."""
    match card.kind:
        case "step.failure":
            error = _error_decoder.decode(card.content)
            raise StepFailed(error.message or f"step {work.name!r} failed for good", code=error.code)
        case "step.checked":
            checked = _checked_decoder.decode(card.content)
            if inputs and checked.inputs != inputs:
                raise ReplayMismatch(
                    f"step {work.name!r} was recorded with other inputs",
                    hint="compute what a step is given from recorded values, or give the step a new name",
                )
            return work.replayed(bytes(checked.value))
        case "step.reference":
            return await replayed(bench, work, await bench.referred(card))
    return work.replayed(card.content)
