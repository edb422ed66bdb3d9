"""Commands about effects: their intent, their result, a doubt, a settlement."""

from __future__ import annotations

from endwell.model.base import AttemptCommand, TaskCommand
from endwell.model.effect import Verdict


class IntendEffect(AttemptCommand, frozen=True, kw_only=True):
    """Ask the ledger whether an effect may be executed, and if so write the intent first."""

    step: str
    key: str
    args_hash: str
    timeout: int


class FinishEffect(AttemptCommand, frozen=True, kw_only=True):
    """The effect took place: its result, and with it the step's record.

    `is_checked`: the content is `{"inputs": args_hash, "value": ...}`.
    """

    step: str
    key: str
    content: bytes
    content_hash: str
    took: int = 0
    is_checked: bool = False


class DoubtEffect(AttemptCommand, frozen=True, kw_only=True):
    """Nobody can say whether the effect took place: it timed out, or its function failed halfway."""

    key: str
    reason: str


class SettleEffect(TaskCommand, frozen=True, kw_only=True):
    """Say what became of an effect: the holder's `reconcile`, or a person (no `attempt_id`)."""

    key: str
    verdict: Verdict
    content: bytes | None = None
    content_hash: str = ""
    attempt_id: str | None = None
    holder_gone: bool = False
    may_repeat: bool = False
    call_ended: bool = False
    is_running: bool = False
    force: bool = False
