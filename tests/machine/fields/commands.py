"""What the machine answers to a command, for tests that pin every field."""

from __future__ import annotations

from typing import Any

from endwell.machine.decide import decide
from endwell.machine.decision import Decision, Evidence
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.policy.limits import Limits
from tests.machine.stages import LIMITS, NOW

DAY = 86_400 * SECOND


def answered(task: Task | None, command: c.TaskCommand, limits: Limits = LIMITS, **seen: Any) -> Decision:
    return decide(task, command, NOW, limits, Evidence(**seen))
