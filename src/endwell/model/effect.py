"""An effect: a step that changes the outside world, as one row that its key finds from anywhere."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

EffectStatus = Literal["intended", "done", "unknown", "not_done", "abandoned"]
Verdict = Literal["done", "not_done", "abandon"]


class Effect(msgspec.Struct, frozen=True, gc=False):
    """In the order of the table's columns. The key never contains an attempt."""

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
        """Whether somebody has said what became of it."""
        return self.status not in ("intended", "unknown")


def step_place(step: str) -> str:
    """Where in a run the step is: all of its identity but the run, so `(2.1)pay#3` of `1:(2.1)pay#3`."""
    return step.partition(":")[2]


def step_name(step: str) -> str:
    """The name that the agent gave the step: `pay` of `1:(2.1)pay#3`."""
    return step.partition(")")[2].rpartition("#")[0]


EFFECT_FIELDS: Final[tuple[str, ...]] = Effect.__struct_fields__
