"""The verb that changes the outside world, at most once: `effect`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from endwell.errors import BadInput, EffectRejected
from endwell.model.inside import lineage_of
from endwell.policy import ledger
from endwell.turn.effect_call import EffectCall
from endwell.turn.effect_doubt import EffectRequest
from endwell.turn.function_calls import (
    Duration,
    FunctionCall,
    Tries,
    bound,
    call_of,
    recorded_call,
    replayed,
    seconds_of,
    tries_of,
)
from endwell.turn.recorder import Recorder

KEY_LIMIT = 500
KEY_PARAMETER = "idempotency_key"


class EffectVerbs:
    """For a context that has a bench."""

    _bench: Recorder

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

        The function is given the key as `idempotency_key` if it has such a parameter; `endwell.effect_key()`
        says it too. It may raise `NotDone` if nothing has happened. After a crash, a timeout or any other
        exception `reconcile(key, *args)` is asked: `Done(value)` or the value, `NOT_DONE` or `None`, or
        `CANNOT_TELL`; if that does not settle it, a person is asked. `deduplicates=True` says that the
        outside ignores a second call with the same key; `accept_risk=True` that one would do no harm.
        `retry=3` calls the function up to three times, where it is sure that nothing has happened.
        A caller that stops waiting (`asyncio.wait_for`) does not end the effect: asking again joins it.
        """
        bench = self._bench
        call = call_of(name, fn, args, kwargs)
        step = bench.begin(name, call)
        try:
            bench.circles.waited()
            bench.circles.news()
            effect_key = _default_key(bench, step) if key is None else _checked(key)
            seconds = seconds_of(timeout, bench.settings.effect_timeout_seconds)
            work = FunctionCall.of(
                name, fn, bound(fn, args, _with_key(fn, kwargs, effect_key)), seconds, result
            )
            card = await bench.recorded(step)
            if card is not None:
                _refuse_other_arguments(bench, effect_key, call, recorded_call(card))
                return await replayed(bench, work, card)
            asking = None
            if reconcile is not None:
                asked = bound(reconcile, (effect_key, *args), kwargs)
                asking = FunctionCall.of(f"{name} (reconcile)", reconcile, asked, seconds, Any)
            order = EffectRequest(
                step=step,
                key=effect_key,
                args_hash=call,
                work=work,
                reconcile=asking,
                policy=tries_of(bench, retry),
                deduplicates=deduplicates,
                accept_risk=accept_risk,
            )
            return await bench.runs.outcome(step, EffectCall(bench, order).run)
        finally:
            bench.end(step, call)


def _refuse_other_arguments(bench: Recorder, key: str, call: str, recorded: str) -> None:
    """The record is that of this very step, so a function of another name is the same one, renamed."""
    if recorded and ledger.has_other_arguments(call, recorded):
        rejected = ledger.conflict(key, bench.task.id)
        raise EffectRejected(rejected.message, code=rejected.code, task_id=bench.task.id)


def _default_key(bench: Recorder, step: str) -> str:
    """The same in every run and replay of the task; the attempt is no part of it."""
    return f"{lineage_of(bench.task)}:{step.partition(':')[2]}"


def _checked(key: object) -> str:
    if isinstance(key, str) and 0 < len(key) <= KEY_LIMIT and key.isprintable():
        return key
    raise BadInput(
        f"an effect's key must be printable text of 1 to {KEY_LIMIT} characters",
        code="bad_effect_key",
        field="key",
    )


def _with_key(fn: Callable[..., Any], kwargs: dict[str, Any], key: str) -> dict[str, Any]:
    """The key as an argument, where the function has a place for it."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # some builtins do not say
        return kwargs
    named = parameters.get(KEY_PARAMETER)
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    takes_it = named is not None and named.kind is not inspect.Parameter.POSITIONAL_ONLY
    return {KEY_PARAMETER: key, **kwargs} if takes_it or (named is None and takes_any) else kwargs
