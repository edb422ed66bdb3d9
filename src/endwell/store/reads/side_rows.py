"""Rows of approvals, dead letters and waits as a log comes to them, folded in memory.

The store writes these rows with the queries that `projections.py` names. Here the same queries are carried
out on dicts, so that rows can be compared with the log. Pure.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from endwell.model import facts as f
from endwell.model.approval import APPROVAL_FIELDS, ApprovalRow
from endwell.model.task import Task
from endwell.store.projections import PROJECTIONS
from endwell.store.queries import NamedQueries

PAGE: Final = 500

Key = tuple[str, ...]
"""A table's name, and a row's id in it."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A failed task that awaits, or has had, a person's verdict: a row of `dead_letters`."""

    task_id: str
    agent: str
    reason: str
    fingerprint: str
    retry_count: int
    failed_at: int
    status: str = "open"
    closed_at: int | None = None

    @property
    def changed_at(self) -> int:
        """When it was closed, or else opened."""
        return self.failed_at if self.closed_at is None else self.closed_at


class KeptWait(msgspec.Struct, frozen=True):
    """A row of `turn_waiting_tools`.

    Few waits are kept in the row of their task: then `place` and `is_reported` have no meaning here (None).
    """

    turn_id: str
    tool_call_id: str
    task_id: str
    kind: str
    name: str
    deadline: int
    wait_status: str
    result_card: str | None = None
    place: int | None = None
    is_reported: int | None = None

    def is_as(self, other: object) -> bool:
        """Whether a row of the store equals this one, as far as this one is known."""
        if isinstance(other, KeptWait) and self.place is None:
            return replace(other, place=None, is_reported=None) == self
        return other == self


class SideRows:
    """The rows that the facts of a log lead to. Each query of `PROJECTIONS` is the method of its name."""

    def __init__(self) -> None:
        self.approvals: dict[str, ApprovalRow] = {}
        self.letters: dict[str, DeadLetter] = {}
        self.waits: dict[str, dict[str, KeptWait]] = {}

    def take(self, before: Task | None, after: Task, fact: f.Fact, at: int) -> None:
        """Fold one fact, given its task before and after it."""
        project = PROJECTIONS.get(type(fact))
        if project is None:
            return
        for query, values in project(before or after, after, fact, at):
            carry_out = getattr(self, query, None)
            if carry_out is not None:
                carry_out(*values)
        if isinstance(fact, f.TaskSuspended):
            of_turn = self.waits.get(after.turn_id or "", {})
            of_turn.update((call, replace(w, place=None, is_reported=None)) for call, w in of_turn.items())

    def add_approval(self, namespace: str, approval_id: str, task_id: str, *asked: Any) -> None:
        values = (approval_id, task_id, *asked[:5], "", *asked[5:], None, None, None)
        row = ApprovalRow(**dict(zip(APPROVAL_FIELDS, values, strict=True)))
        before = self.approvals.get(approval_id)
        if before is not None and before.shown_hash == row.shown_hash:
            row = replace(row, votes=before.votes)
        self.approvals[approval_id] = row

    def vote_approval(self, by: str, namespace: str, approval_id: str) -> None:
        row = self.approvals.get(approval_id)
        if row is not None and row.decision is None:
            self.approvals[approval_id] = replace(row, votes=f"{row.votes},{by}" if row.votes else by)

    def close_approval(
        self, decision: str, by: str | None, at: int, namespace: str, approval_id: str
    ) -> None:
        row = self.approvals.get(approval_id)
        if row is not None and row.decision is None:
            decided = replace(row, decision=decision, decided_by=by, decided_at=at)
            self.approvals[approval_id] = decided

    def add_dead_letter(self, namespace: str, task_id: str, *about: Any) -> None:
        self.letters[task_id] = DeadLetter(task_id, *about)

    def close_dead_letter(self, status: str, at: int, namespace: str, task_id: str) -> None:
        row = self.letters.get(task_id)
        if row is not None:
            self.letters[task_id] = replace(row, status=status, closed_at=at)

    def add_wait(self, namespace: str, task_id: str, turn_id: str, call: str, *about: Any) -> None:
        kind, name, deadline, status, _, place = about
        added = KeptWait(turn_id, call, task_id, kind, name, deadline, status, None, place, 0)
        self.waits.setdefault(turn_id, {})[call] = added

    def answer_wait(self, status: str, card: str | None, reported: int, at: int, *where: str) -> None:
        _, turn_id, call = where
        row = self.waits.get(turn_id, {}).get(call)
        if row is not None:
            is_reported = None if row.place is None else reported
            answered = replace(row, wait_status=status, result_card=card, is_reported=is_reported)
            self.waits[turn_id][call] = answered

    def drop_waits(self, at: int, namespace: str, turn_id: str) -> None:
        of_turn = self.waits.get(turn_id, {})
        for call, row in of_turn.items():
            if row.wait_status == "waiting":
                of_turn[call] = replace(row, wait_status="dropped")

    def rows(self) -> dict[Key, Any]:
        """Return all rows by table and id."""
        found: dict[Key, Any] = {("approval", row.id): row for row in self.approvals.values()}
        found |= {("dead_letter", row.task_id): row for row in self.letters.values()}
        for of_turn in self.waits.values():
            found |= {("wait", row.turn_id, row.tool_call_id): row for row in of_turn.values()}
        return found


class SideRowReads(NamedQueries):
    """Reads the rows of the store."""

    async def side_rows(self, namespace: str, after: str, before: str) -> AsyncIterator[tuple[Key, Any]]:
        """Rows whose ids lie behind one and before another, in pages; ids begin with that of their task."""
        last = after
        while rows := await self._rows("approvals_between", namespace, last, before, PAGE):
            last = rows[-1][0]
            for row in rows:
                yield ("approval", row[0]), ApprovalRow(*row)
        last = after
        while rows := await self._rows("dead_letters_between", namespace, last, before, PAGE):
            last = rows[-1][0]
            for row in rows:
                yield ("dead_letter", row[0]), DeadLetter(*row)
        last, call = after, ""
        while rows := await self._rows("waits_between", namespace, last, before, call, PAGE):
            last, call = rows[-1][:2]
            for row in rows:
                yield ("wait", *row[:2]), KeptWait(*row)


def is_as_folded(row: Any, folded: Any) -> bool:
    """Whether a row of the store equals the row folded from the log."""
    return folded.is_as(row) if isinstance(folded, KeptWait) else bool(row == folded)
