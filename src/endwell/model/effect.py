"""Effects: steps that change the outside world. The row that a key finds, and its commands and facts."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from endwell.model.base import AttemptCommand, Fact, TaskCommand

EffectStatus = Literal["intended", "done", "unknown", "not_done", "abandoned"]
Verdict = Literal["done", "not_done", "abandon"]


class Effect(msgspec.Struct, frozen=True, gc=False):
    """One effect, in the order of the table's columns. The key never contains an attempt."""

    namespace: str
    key: str
    task_id: str
    lineage: str
    step: str
    status: EffectStatus
    args_hash: str
    attempt_id: str | None
    session_id: str | None
    not_after: int | None
    result_card: str | None
    result_hash: str | None
    settled_by: str | None
    version: int
    created_at: int
    updated_at: int

    @property
    def is_settled(self) -> bool:
        """Whether its outcome is known."""
        return self.status not in ("intended", "unknown")


EFFECT_FIELDS: Final[tuple[str, ...]] = Effect.__struct_fields__


def step_place(step: str) -> str:
    """The step's identity without the run: `(2.1)pay#3` of `1:(2.1)pay#3`."""
    return step.partition(":")[2]


def step_name(step: str) -> str:
    """The name that the agent gave the step: `pay` of `1:(2.1)pay#3`."""
    return step.partition(")")[2].rpartition("#")[0]


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
    """It is unknown whether the effect took place: it timed out, or its function failed halfway."""

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


class EffectIntended(Fact, frozen=True, kw_only=True):
    """The outside world is about to be changed; until `not_after` no other attempt may try."""

    type = "effect.intended"
    key: str
    step: str
    args_hash: str
    lineage: str
    not_after: int
    progress_by: int


class EffectDone(Fact, frozen=True, kw_only=True):
    """The effect took place; its result is kept under its key."""

    type = "effect.done"
    key: str
    card: str
    card_hash: str


class EffectDoubted(Fact, frozen=True, kw_only=True):
    """Whether the effect took place is not known."""

    type = "effect.unknown"
    key: str
    reason: str
    adopts: bool = False  # from now on this task waits for the verdict
    is_left_behind: bool = False  # its own turn ended; what another task did with it since stands


class EffectSettled(Fact, frozen=True, kw_only=True):
    """A person, or the holder's `reconcile`, said what became of the effect."""

    type = "effect.settled"
    key: str
    verdict: str
    by: str
    card: str | None = None
    card_hash: str | None = None
    is_forced: bool = False  # a person said so although the call could still be in progress
