"""The verb that changes the outside world at most once: `effect`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from endwell.errors import BadInput, EffectRejected
from endwell.model.inside import lineage_of
from endwell.policy import ledger
from endwell.turn.effect_call import EffectCall
from endwell.turn.effect_verdict import EffectRequest
from endwell.turn.function_calls import (
    Duration,
    FunctionCall,
    Tries,
    effect_call_id,
    recorded_call,
    replay_record,
    retry_policy_of,
    seconds_of,
)
from endwell.turn.recorder import Recorder

KEY_LIMIT = 500
KEY_PARAMETER = "idempotency_key"


class EffectVerbs:
    """The part of a context that changes the outside world."""

    _recorder: Recorder

    async def effect(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        key: str | None = None,
        reconcile: Callable[..., Any] | None = None,
        timeout: Duration | None = None,
        retry: Tries = None,
        deduplicates: bool = False,
        accept_risk: bool = False,
        result: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function that changes the outside world; it takes place at most once under its key.

        The function gets the key as `idempotency_key` if it has such a parameter, and from `effect_key()`.
        It may raise `NotDone` if nothing has happened. After a crash, a timeout or any other exception
        `reconcile(key, *args)` is asked: `Done(value)` or the value, `NOT_DONE` or `None`, or `CANNOT_TELL`;
        if that does not settle it, a person is asked. `deduplicates=True` says that the outside ignores a
        second call with the same key, `accept_risk=True` that it does no harm. `retry=3` makes three calls,
        where it is sure that nothing has happened. Asking again joins an effect that was left unawaited.
        """
        recorder, call_id = self._recorder, effect_call_id(name, fn, args, kwargs)
        with recorder.ids.step(name, call_id) as step:
            recorder.repeat_guard.on_effect()
            effect_key = _default_key(recorder, step) if key is None else _checked_key(key)
            seconds = seconds_of(timeout, recorder.settings.effect_timeout_seconds)
            given = _with_key(fn, kwargs, effect_key)
            request = EffectRequest(
                step=step,
                key=effect_key,
                args_hash=call_id,
                call=FunctionCall(name, fn, args, given, seconds=seconds, result=result),
                reconcile=_reconcile_call(name, reconcile, (effect_key, *args), kwargs, seconds),
                policy=retry_policy_of(recorder, retry),
                deduplicates=deduplicates,
                accept_risk=accept_risk,
            )
            return await _result_of(recorder, request)


async def _result_of(recorder: Recorder, request: EffectRequest) -> Any:
    """The recorded result of an effect, or that of carrying it out."""
    card = await recorder.record_of(request.step)
    if card is None:
        return await recorder.runs.outcome(request.step, EffectCall(recorder, request).run)
    _refuse_other_arguments(recorder, request, recorded_call(card))
    return await replay_record(recorder, request.call, card)


def _reconcile_call(
    name: str,
    reconcile: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seconds: float,
) -> FunctionCall | None:
    if reconcile is None:
        return None
    return FunctionCall(f"{name} (reconcile)", reconcile, args, kwargs, seconds=seconds, result=Any)


def _refuse_other_arguments(recorder: Recorder, request: EffectRequest, recorded: str) -> None:
    """Refuse a recorded effect with other arguments; a function that was only renamed is the same one."""
    if recorded and ledger.has_other_arguments(request.args_hash, recorded):
        rejected = ledger.key_conflict(request.key, recorder.task.id)
        raise EffectRejected(rejected.message, code=rejected.code, task_id=recorder.task.id)


def _default_key(recorder: Recorder, step: str) -> str:
    """The same key in every run and replay of the task; the attempt is no part of it."""
    return f"{lineage_of(recorder.task)}:{step.partition(':')[2]}"


def _checked_key(key: object) -> str:
    if isinstance(key, str) and 0 < len(key) <= KEY_LIMIT and key.isprintable():
        return key
    raise BadInput(
        f"an effect's key must be printable text of 1 to {KEY_LIMIT} characters",
        code="bad_effect_key",
        field="key",
    )


def _with_key(fn: Callable[..., Any], kwargs: dict[str, Any], key: str) -> dict[str, Any]:
    """The keyword arguments, with the key if the function has a parameter for it."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return kwargs
    named = parameters.get(KEY_PARAMETER)
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    takes_it = named is not None and named.kind is not inspect.Parameter.POSITIONAL_ONLY
    return {KEY_PARAMETER: key, **kwargs} if takes_it or (named is None and takes_any) else kwargs
