"""An approval as it is kept: what was asked, of whom, and the one decision on it."""

from __future__ import annotations

from typing import Final

import msgspec


class ApprovalRow(msgspec.Struct, frozen=True):
    """`approvers` and `votes` are names joined by commas; no approvers: anybody may decide."""

    id: str
    task_id: str
    question: str
    shown_card: str
    shown_hash: str
    approvers: str
    quorum: int
    votes: str
    remind_at: int
    expire_at: int
    created_at: int
    decision: str | None
    decided_by: str | None
    decided_at: int | None


APPROVAL_FIELDS: Final[tuple[str, ...]] = ApprovalRow.__struct_fields__
