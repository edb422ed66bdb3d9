"""The ledger: may this effect be executed now? Four answers, a pure function of its one row.

| row                                        | answer                                        |
|--------------------------------------------|-----------------------------------------------|
| none, or settled as not done               | `AllowExecute`                                |
| done                                       | `ReturnRecordedResult`                        |
| intended by another, its time not over     | `WaitOtherWorker`                             |
| intended and its time is over, or unknown  | `Rejected` (`effect_unknown`): reconcile it   |
| abandoned                                  | `Rejected` (`effect_abandoned`)               |
| other arguments, in another lineage        | `Rejected` (`effect_conflict`)                |

`AllowExecute` is the only answer after which the effect's function may be called.
"""

from __future__ import annotations

import msgspec

from endwell.model.effect import Effect


class AllowExecute(msgspec.Struct, frozen=True, tag=True):
    """Write the intent, then call the function. Others keep away until `not_after`."""

    not_after: int


class ReturnRecordedResult(msgspec.Struct, frozen=True, tag=True):
    """It was done before; the card holds the result."""

    card: str
    card_hash: str


class WaitOtherWorker(msgspec.Struct, frozen=True, tag=True):
    """Somebody else may be executing it; ask again after `until`."""

    until: int


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """It may not be executed."""

    code: str
    message: str


LedgerAnswer = AllowExecute | ReturnRecordedResult | WaitOtherWorker | Rejected


def answer(
    effect: Effect | None, *, lineage: str, args_hash: str, timeout: int, now: int, margin: int
) -> LedgerAnswer:
    """What the row allows whoever asks now. Until `not_after` plus the margin a writer may still be at it."""
    if effect is None:
        return AllowExecute(now + timeout)
    if effect.lineage != lineage and effect.args_hash != args_hash:
        why = f"the key {effect.key!r} belongs to task {effect.task_id} with other arguments"
        return Rejected("effect_conflict", why)
    match effect.status:
        case "not_done":
            return AllowExecute(now + timeout)
        case "done":
            return ReturnRecordedResult(effect.result_card or "", effect.result_hash or "")
        case "intended":
            return _while_intended(effect, now, margin)
        case "abandoned":
            return Rejected("effect_abandoned", f"{effect.settled_by} abandoned the effect {effect.key!r}")
        case _:
            return _unknown(effect)


def _while_intended(effect: Effect, now: int, margin: int) -> LedgerAnswer:
    until = (effect.not_after or 0) + margin
    return WaitOtherWorker(until) if now < until else _unknown(effect)


def _unknown(effect: Effect) -> Rejected:
    why = f"whether the effect {effect.key!r} took place is not known since attempt {effect.attempt_id}"
    return Rejected("effect_unknown", why)


def may_run_again(*, same_attempt: bool, holder_gone: bool, may_repeat: bool) -> bool:
    """Whether "not done" is enough to try again: nobody can still be executing it, or it would do no harm."""
    return same_attempt or holder_gone or may_repeat
