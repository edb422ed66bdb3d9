"""The oracle at work: it looks after every transaction, at checkpoints, and when all is over."""

from __future__ import annotations

from dataclasses import dataclass

from endwell.testing.oracle import at_rest, of_approvals, of_foreign, of_relays, of_streams, of_tasks
from endwell.testing.oracle.registry import Invariant, of
from endwell.testing.oracle.view import OracleView

LISTS = (of_tasks, of_approvals, of_foreign, of_relays, of_streams, at_rest)
"""Importing them registers what they say; whoever adds a list names it here."""


@dataclass(frozen=True)
class Violation:
    """Something that must hold did not."""

    invariant: str
    says: str
    problem: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.says}\n  {self.problem}"


class Oracle:
    """`found` is what was wrong, oldest first; the first is what matters."""

    def __init__(self, view: OracleView) -> None:
        self.view = view
        self.found: list[Violation] = []
        self.judged = 0
        self._after_commit = of("commit")
        self._after_move = of("move")
        self._now_and_then = of("checkpoint")
        self._at_rest = of("rest")
        self._left = of("left")

    def after_commit(self) -> None:
        """Look at what the transaction that has just taken place has changed."""
        if not self.found and self.view.look():
            self._judge(self._after_commit)

    def after_move(self) -> None:
        """Look at a cursor that has just been moved."""
        if not self.found:
            self._judge(self._after_move)

    def checkpoint(self) -> None:
        """Look at everything."""
        if not self.found:
            self._judge(self._now_and_then)

    def rest(self) -> None:
        """Look at everything, for the last time."""
        self.checkpoint()
        if not self.found:
            self._judge(self._at_rest)

    def left(self) -> None:
        """Look at what is there when nobody is."""
        if not self.found:
            self._judge(self._left)

    def _judge(self, invariants: tuple[Invariant, ...]) -> None:
        for one in invariants:
            self.judged += 1
            try:
                problems = list(one.judge(self.view))
            except Exception as error:  # here it would pass for an error of the database that commits
                problems = [f"the invariant itself failed: {error!r}"]
            self.found += [Violation(one.name, one.says, problem) for problem in problems]
