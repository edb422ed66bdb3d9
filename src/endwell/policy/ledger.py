"""The ledger: whether an effect may be executed now. Four answers, a pure function of the effect's row.

| row                                        | answer                                        |
|--------------------------------------------|-----------------------------------------------|
| none, or settled as not done               | `AllowExecute`                                |
| the same, known since before a restore     | `Rejected` (`effect_unknown`): reconcile it   |
| done                                       | `ReturnRecordedResult`                        |
| intended by another, its time not over     | `WaitOtherWorker`                             |
| intended and its time is over, or unknown  | `Rejected` (`effect_unknown`): reconcile it   |
| abandoned                                  | `Rejected` (`effect_abandoned`)               |
| another call: other arguments, or another  | `Rejected` (`effect_conflict`)                |
| function in another step                   |                                               |

The call may change only within a lineage, and only while the effect is settled as not done: a replay may
repair what never took place. A call is known by its `args_hash`: the fingerprint of its arguments, a colon
and its function's name. Rows of older releases lack the name; they may be of any function.

`AllowExecute` is the only answer after which the effect's function may be called.
"""

from __future__ import annotations

import msgspec

from endwell.model.effect import Effect, step_name, step_place


class AllowExecute(msgspec.Struct, frozen=True, tag=True):
    """Write the intent, then call the function. Others keep away until `not_after`."""

    not_after: int


class ReturnRecordedResult(msgspec.Struct, frozen=True, tag=True):
    """It was done before; the card holds the result."""

    card: str
    card_hash: str


class WaitOtherWorker(msgspec.Struct, frozen=True, tag=True):
    """Another attempt may be executing it; ask again after `until`."""

    until: int


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """It may not be executed."""

    code: str
    message: str


LedgerAnswer = AllowExecute | ReturnRecordedResult | WaitOtherWorker | Rejected


def answer(
    effect: Effect | None,
    *,
    lineage: str,
    step: str,
    args_hash: str,
    timeout: int,
    now: int,
    margin: int,
    restored_at: int | None,
    asked_since: int,
) -> LedgerAnswer:
    """What the row allows. Until `not_after` plus the margin the intending attempt may still be calling.

    `asked_since` is when the first task that leads to this effect was submitted.
    """
    if effect is None:
        return _if_new(asked_since, restored_at, now + timeout)
    if _is_another(effect, lineage, step, args_hash) and not _may_change(effect, lineage):
        return key_conflict(effect.key, effect.task_id)
    match effect.status:
        case "not_done":
            return _if_new(effect.updated_at, restored_at, now + timeout)
        case "done":
            return ReturnRecordedResult(effect.result_card or "", effect.result_hash or "")
        case "intended":
            return _while_intended(effect, now, margin)
        case "abandoned":
            return Rejected("effect_abandoned", f"{effect.settled_by} abandoned the effect {effect.key!r}")
        case _:
            return _unknown_outcome(effect)


def _if_new(known_since: int, restored_at: int | None, not_after: int) -> LedgerAnswer:
    """Allow it, unless a restore lies in between: it may have been done after the backup."""
    if restored_at is not None and known_since <= restored_at:
        why = "the store was restored from a backup, and the effect may have been made since"
        return Rejected("effect_unknown", why)
    return AllowExecute(not_after)


def named_call(inputs: str, function: str) -> str:
    """The identity of a call: the fingerprint of its arguments, and its function's name."""
    return f"{inputs}:{function}"


def has_other_arguments(one: str, other: str) -> bool:
    """Whether two calls differ in their arguments."""
    return one.partition(":")[0] != other.partition(":")[0]


def _is_another(effect: Effect, lineage: str, step: str, args_hash: str) -> bool:
    """Whether it is another call; a function may be renamed, and several steps may call one function."""
    function, other = effect.args_hash.partition(":")[2], args_hash.partition(":")[2]
    is_other_function = bool(function and other) and function != other
    part = step_place if effect.lineage == lineage else step_name
    is_other_step = part(effect.step) != part(step)
    return has_other_arguments(effect.args_hash, args_hash) or (is_other_function and is_other_step)


def key_conflict(key: str, task_id: str) -> Rejected:
    """One key stands for one call."""
    why = f"task {task_id} used the key {key!r} with other arguments, or for another function"
    return Rejected("effect_conflict", f"{why}; give each effect a key of its own")


def _while_intended(effect: Effect, now: int, margin: int) -> LedgerAnswer:
    until = surely_over_at(effect, margin)
    return WaitOtherWorker(until) if now < until else _unknown_outcome(effect)


def _unknown_outcome(effect: Effect) -> Rejected:
    why = f"whether the effect {effect.key!r} took place is not known since attempt {effect.attempt_id}"
    return Rejected("effect_unknown", why)


def _may_change(effect: Effect, lineage: str) -> bool:
    return effect.lineage == lineage and effect.status in ("not_done", "abandoned")


def surely_over_at(effect: Effect, margin: int) -> int:
    """When no call of the effect can be in progress any more: its own time, and a margin."""
    return (effect.not_after or 0) + margin


def may_run_again(
    *, same_attempt: bool, call_ended: bool, time_is_over: bool, holder_gone: bool, may_repeat: bool
) -> bool:
    """Whether "not done" permits another execution.

    It does if a second call is harmless, if the attempt says that its own call has ended, or if the call's
    time is over and its own attempt asks, or its process is gone.
    """
    is_own_and_ended = same_attempt and call_ended
    return may_repeat or is_own_and_ended or (time_is_over and (same_attempt or holder_gone))
