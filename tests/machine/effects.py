"""A task with its effect's row, by the stage that the effect is in."""

from __future__ import annotations

from typing import Any

from endwell.machine.decide import decide
from endwell.machine.decision import Decision, Evidence
from endwell.model import commands as c
from endwell.model.effect import Effect
from endwell.model.moments import SECOND
from endwell.model.task import Task
from tests.machine.stages import LAPSED, LIMITS, NOW, effect_after, fold, give, running_task, to

OVER = NOW + 60 * SECOND + LIMITS.effect_margin


class TaskWithEffect:
    """A task and the effect's row, moved together as the door moves them."""

    def __init__(self, task: Task, effect: Effect | None = None) -> None:
        self.task = task
        self.effect = effect

    def ask(self, kind: type[c.TaskCommand], now: int = NOW, **options: Any) -> Decision:
        return decide(self.task, to(kind, self.task, **options), now, LIMITS, Evidence(effect=self.effect))

    def give(self, kind: type[c.TaskCommand], now: int = NOW, **options: Any) -> Decision:
        decision = self.ask(kind, now, **options)
        self.effect = effect_after(self.effect, self.task, decision, now)
        self.task = fold(self.task, decision, now, self.task.id)
        return decision

    def next_attempt(self, now: int = NOW) -> None:
        """The holder is lost, and another attempt takes the turn."""
        self.task = give(self.task, to(c.Reclaim), now, seen=LAPSED)
        self.task = give(self.task, to(c.Claim, attempt_id="a2", session_id="s2"), now)

    @property
    def status(self) -> str | None:
        return self.effect.status if self.effect else None


def in_flight() -> TaskWithEffect:
    """An attempt has written its intent and may be calling the function."""
    pair = TaskWithEffect(running_task())
    pair.give(c.IntendEffect)
    return pair


def in_doubt() -> TaskWithEffect:
    pair = in_flight()
    pair.give(c.DoubtEffect)
    return pair


def done() -> TaskWithEffect:
    pair = in_flight()
    pair.give(c.FinishEffect)
    return pair
