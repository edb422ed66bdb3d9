"""The oracle: it judges every transaction, checkpoints, and the end of a history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from endwell.testing.oracle import at_rest, of_approvals, of_foreign, of_relays, of_streams, of_tasks
from endwell.testing.oracle.registry import When, invariants_for
from endwell.testing.oracle.view import OracleView

LISTS = (of_tasks, of_approvals, of_foreign, of_relays, of_streams, at_rest)
"""Importing these lists registers their invariants; name a new list here."""


@dataclass(frozen=True)
class Violation:
    """An invariant that did not hold."""

    invariant: str
    says: str
    problem: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.says}\n  {self.problem}"


class Oracle:
    """Judges a history while it runs. `found` are the violations, oldest first; after the first it stops."""

    def __init__(self, view: OracleView) -> None:
        self.view = view
        self.found: list[Violation] = []
        self.judged = 0
        self._invariants = {when: invariants_for(when) for when in get_args(When)}

    def judge_commit(self) -> None:
        """Judge what the transaction that has just been committed has changed."""
        if not self.found and self.view.read_new_events():
            self._judge_invariants("commit")

    def judge_move(self) -> None:
        """Judge a cursor that has just been moved."""
        self._judge_invariants("move")

    def judge_all(self) -> None:
        """Judge the state of the whole installation."""
        self._judge_invariants("checkpoint")

    def judge_rest(self) -> None:
        """Judge the whole installation when every task has ended."""
        self._judge_invariants("checkpoint")
        self._judge_invariants("rest")

    def judge_left(self) -> None:
        """Judge what is left when all processes have gone."""
        self._judge_invariants("left")

    def _judge_invariants(self, when: When) -> None:
        for one in () if self.found else self._invariants[when]:
            self.judged += 1
            try:
                problems = list(one.judge(self.view))
            except Exception as error:  # here it would pass for an error of the database that commits
                problems = [f"the invariant itself failed: {error!r}"]
            self.found += [Violation(one.name, one.says, problem) for problem in problems]
