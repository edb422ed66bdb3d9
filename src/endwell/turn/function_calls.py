"""Calls of the functions of steps: within their timeout, off the event loop, their results kept as JSON."""

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
from endwell.model.moments import SECOND
from endwell.model.task import ErrorInfo
from endwell.model.typed import Shape, is_async, result_of
from endwell.policy import ledger
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
    """A function with its arguments, its timeout, and the declared type of its result."""

    __slots__ = ("_call", "_is_async", "name", "seconds", "shape")

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        seconds: float,
        result: Any,
    ) -> None:
        if not callable(fn):
            raise UsageError(f"step {name!r}: {content.safe_repr(fn, 60)} is not a function")
        self.name = name
        self.seconds = seconds
        self.shape = result_of(fn) if result is None else Shape.of(result)
        self._call = partial(fn, *args, **kwargs)
        self._is_async = is_async(fn)

    async def run(
        self, runtime: Runtime, threads: TurnThreads, *, before: Callable[[], None] | None = None
    ) -> Any:
        """The function's result. Raises `StepTimeout` when it takes too long; a later result is discarded.

        `before` is called in the function's own thread, immediately before the function.
        """
        call = self._call if before is None else partial(_call_after, before, self._call)
        scope = runtime.timeout(self.seconds)
        try:
            async with scope:
                value = await (call() if self._is_async else self._in_thread(threads, call))
        except TimeoutError:
            if not scope.expired():
                raise  # the function's own
            raise self._timeout_error() from None
        if scope.expired():
            raise self._timeout_error()
        return value

    async def _in_thread(self, threads: TurnThreads, call: Callable[[], Any]) -> Any:
        thread, running = ThreadCall(call), CURRENT_CALL.get()
        if running is not None:
            running.add(lambda: thread.is_open)
        value = await threads.run(thread)
        return await value if inspect.isawaitable(value) else value

    def _timeout_error(self) -> StepTimeout:
        return StepTimeout(f"step {self.name!r} took longer than {self.seconds:g} s")

    def encode_result(self, value: Any) -> bytes:
        return content.encode(value, what=f"result of step {self.name}")

    def check_result(self, encoded: bytes) -> Any:
        """What was kept, as the declared type: the first run and every replay see the same value."""
        try:
            return self.shape.check(content.decode_stored(encoded), f"result of step {self.name}")
        except BadInput as refusal:
            raise TurnError(refusal.message, code="bad_step_result", hint=refusal.hint) from refusal

    def replay_result(self, encoded: bytes) -> Any:
        """A recorded result, as the declared type; refused if the type has changed since."""
        try:
            return self.check_result(encoded)
        except TurnError as refusal:
            raise ReplayMismatch(
                f"what step {self.name!r} recorded does not fit any more: {refusal.message}",
                hint="steps that have run keep their types; give the changed step a new name",
            ) from refusal


def has_ended_by_itself(error: BaseException) -> bool:
    """Whether a function that raised this has surely ended: no timeout and no cancellation led to it."""
    seen: list[BaseException] = []
    to_check: list[object] = [error]
    while to_check:
        cause = to_check.pop()
        if not isinstance(cause, BaseException) or any(cause is other for other in seen):
            continue
        if _is_cut_short(cause):
            return False
        seen.append(cause)
        to_check += [cause.__cause__, cause.__context__, *getattr(cause, "exceptions", ())]
    return True


def _is_cut_short(error: BaseException) -> bool:
    """Client libraries have errors of their own for timeouts: some say so by name only, some by text only."""
    names = " ".join(kind.__name__ for kind in type(error).__mro__).lower()
    text = content.safe_str(error, _TEXT_LIMIT).lower().replace("_", " ")
    return any(word in names for word in _CUT_SHORT_NAMES) or any(word in text for word in _CUT_SHORT_TEXTS)


def _call_after(before: Callable[[], None], call: Callable[[], Any]) -> Any:
    before()
    return call()


def inputs_hash(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The fingerprint of a step's arguments."""
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
    """The content of a `step.checked` card: a result, and the fingerprint of its arguments."""

    inputs: str
    value: msgspec.Raw


_checked_decoder = msgspec.json.Decoder(CheckedValue)


def retry_policy_of(recorder: Recorder, retry: Tries) -> RetryPolicy:
    """How often a step is tried: a number counts every call, the first included."""
    if isinstance(retry, RetryPolicy):
        return retry
    calls: object = 1 if retry is None else retry
    if isinstance(calls, int) and 1 <= calls <= MOST_CALLS:
        return msgspec.structs.replace(recorder.limits.retry, max_retries=calls - 1)
    raise UsageError(f"retry must be a number of calls from 1 to {MOST_CALLS:,}, or a RetryPolicy")


async def pause_before(recorder: Recorder, step: str, policy: RetryPolicy, number: int) -> None:
    """Wait for the backoff before retry `number` of a step; the turn is not reaped while it waits."""
    seconds = backoff(policy, number, recorder.runtime.ids.fraction()) / SECOND
    await recorder.announce_step(step, seconds)
    await recorder.runtime.sleep(seconds)


def effect_call_id(name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What identifies one call of an effect: its arguments, also those of a `partial`, and its function."""
    given: list[Any] = [args, kwargs]
    while isinstance(fn, partial):
        bound = list(filter(_is_json, fn.args)), {k: v for k, v in fn.keywords.items() if _is_json(v)}
        given += filter(None, bound)
        fn = fn.func
    function = "".join(filter(str.isprintable, str(getattr(fn, "__name__", type(fn).__name__))))
    inputs = content.fingerprint(content.encode(given, what=f"inputs of step {name}"))
    return ledger.named_call(inputs, function[:_FUNCTION_LIMIT])


def _is_json(value: Any) -> bool:
    """Whether a value can be compared: a `partial` may bind clients and other objects too."""
    try:
        content.encode(value, what="arguments")
    except Exception:  # an object may raise anything while it is looked at
        return False
    return True


def recorded_call(card: Card) -> str:
    """The call whose result a record keeps; empty in records of older releases."""
    if card.kind == "step.checked":
        return _checked_decoder.decode(card.content).inputs
    if card.kind == "step.reference":
        return str(msgspec.json.decode(card.content).get("inputs", ""))
    return ""


async def replay_record(recorder: Recorder, call: FunctionCall, card: Card, inputs: str = "") -> Any:
    """The recorded result; raises `StepFailed` if the step failed for good."""
    match card.kind:
        case "step.failure":
            error = _error_decoder.decode(card.content)
            raise StepFailed(error.message or f"step {call.name!r} failed for good", code=error.code)
        case "step.checked":
            checked = _checked_decoder.decode(card.content)
            if inputs and checked.inputs != inputs:
                raise ReplayMismatch(
                    f"step {call.name!r} was recorded with other inputs",
                    hint="compute what a step is given from recorded values, or give the step a new name",
                )
            return call.replay_result(bytes(checked.value))
        case "step.reference":
            return await replay_record(recorder, call, await recorder.referred_card(card))
    return call.replay_result(card.content)
