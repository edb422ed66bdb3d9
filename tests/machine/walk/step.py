"""One command to one task, and what came of it."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from endwell.machine.decision import Decision, Evidence
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.task import Task
from endwell.policy.limits import Limits
from tests.machine.walk.invariants import rule_due
from tests.machine.walk.scene import Scene

# listed again here, because a list that follows from the machine's table would shrink with it
ONLY_BY_HOLDER: Final[tuple[type[c.TaskCommand], ...]] = (
    c.Progress,
    c.Repeat,
    c.HearNudges,
    c.StartStep,
    c.RecordStep,
    c.IntendEffect,
    c.FinishEffect,
    c.DoubtEffect,
    c.KeepDraft,
    c.Finish,
    c.FailTurn,
    c.HandBack,
    c.Suspend,
)


class Step(msgspec.Struct, frozen=True, gc=False):
    """One command to one existing task, what came of it, and what lay beside the task before and after."""

    before: Task
    command: c.TaskCommand
    decision: Decision
    after: Task
    now: int
    limits: Limits
    seen: Evidence
    scene_before: Scene
    scene_after: Scene

    def count(self, *kinds: type[f.Fact]) -> int:
        facts = self.decision.facts
        if len(facts) == 1:  # nearly always, and this is asked some millions of times
            return int(type(facts[0]) in kinds)
        return sum([type(fact) in kinds for fact in facts])

    @property
    def moves(self) -> bool:
        """Whether something happened beyond a refused write."""
        return bool(self.decision.facts) and self.decision.refusal is None

    @property
    def holds(self) -> bool:
        """Whether the command names the attempt that holds the task."""
        attempt = getattr(self.command, "attempt_id", None)
        return self.before.status == "running" and attempt == self.before.attempt_id

    @property
    def ends_the_task(self) -> bool:
        return self.after.is_ended and not self.before.is_ended

    @property
    def rule(self) -> str | None:
        """The clock rule that this step had to carry out."""
        fires = isinstance(self.command, c.ClockFired) and not self.before.is_ended
        return rule_due(self.before, self.now) if fires else None


def at_rest(task: Task) -> Task:
    """The task without what every event changes."""
    return replace(task, version=0, updated_at=0, head_hash=b"")
