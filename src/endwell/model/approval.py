"""Approvals: the row, the open approval on its task, and the facts about it."""

from __future__ import annotations

from typing import Final

import msgspec

from endwell.model.base import Fact


class ApprovalRow(msgspec.Struct, frozen=True):
    """What was asked of people, and their decision.

    `approvers` and `votes` are names joined by commas; without approvers anyone may decide.
    """

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


class OpenApproval(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who may decide, how many must agree, who did, and what exactly they were shown."""

    id: str
    shown_hash: str
    by: tuple[str, ...] = ()
    quorum: int = 1
    votes: tuple[str, ...] = ()


class ApprovalRequested(Fact, frozen=True, kw_only=True):
    """A person must agree: before the task starts, or (with an id of its own) before its turn continues."""

    type = "approval.requested"
    remind_at: int
    expire_at: int
    id: str | None = None
    shown_hash: str = ""
    question: str = ""
    by: tuple[str, ...] = ()
    quorum: int = 1


class ApprovalReminded(Fact, frozen=True, kw_only=True):
    """The person was reminded of an open approval."""

    type = "approval.reminded"
    remind_at: int


class ApprovalVoted(Fact, frozen=True, kw_only=True):
    """One of several people who must agree did."""

    type = "approval.voted"
    by: str
    id: str | None = None


class ApprovalApproved(Fact, frozen=True, kw_only=True):
    """Everybody who must agree did: the task may start, or its turn continues.

    `carried_from` is the task whose approval counts again, for the same payload under the same rule.
    """

    type = "approval.approved"
    by: str
    run_at: int
    id: str | None = None
    carried_from: str | None = None


class RejectedApproval(Fact, frozen=True, kw_only=True):
    """A person declined."""

    type = "approval.rejected"
    by: str
    id: str | None = None


class ExpiredApproval(Fact, frozen=True, kw_only=True):
    """The time for the decision is over. Expired is not rejected."""

    type = "approval.expired"
    id: str | None = None
