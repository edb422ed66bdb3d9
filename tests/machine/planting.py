"""Plants a small defect into the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from endwell.machine import clocks, evolve
from endwell.machine.decision import Decision
from endwell.machine.table import TABLE
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.task import Task

Plant = Callable[[pytest.MonkeyPatch], None]


def change_rule(patch: pytest.MonkeyPatch, kind: type[c.Command], **changes: Any) -> None:
    """Change a rule of the command table."""
    patch.setitem(TABLE, kind, replace(TABLE[kind], **changes))


def handler(kind: type[c.Command], change: Callable[..., Decision]) -> Plant:
    """The command's handler with a defect; `change` gets the right handler first."""
    right = TABLE[kind].then
    return lambda patch: change_rule(patch, kind, then=lambda *args: change(right, *args))


def folded(kind: type[f.Fact], change: Callable[[Task, Task, Any], Task]) -> Plant:
    """The fact's fold with a defect; `change` gets the task before and after."""
    right = evolve._FOLDS[kind]
    wrong = lambda task, fact, at: change(task, right(task, fact, at), fact)  # noqa: E731
    return lambda patch: patch.setitem(evolve._FOLDS, kind, wrong)


def acting(name: str, change: Callable[[clocks.Action], clocks.Action]) -> dict[str, Any]:
    """The clock rules by status, with another action for one rule; `change` gets the right action."""
    return {
        status: tuple(
            (replace(rule, then=change(rule.then)) if rule.name == name else rule, deadline_of)
            for rule, deadline_of in rules
        )
        for status, rules in clocks._BY_STATUS.items()
    }


def rule(name: str, change: Callable[[Decision, Task], Decision]) -> Plant:
    """The clock rule's action with a defect."""
    wrong = acting(name, lambda right: lambda task, *args: change(right(task, *args), task))
    return lambda patch: patch.setattr(clocks, "_BY_STATUS", wrong)


def replaced(module: Any, name: str, wrong: Any) -> Plant:
    """Another function in the place of the right one."""
    return lambda patch: patch.setattr(module, name, wrong)


def with_facts(decision: Decision, change: Callable[[Any], f.Fact | None]) -> Decision:
    """The decision with its facts changed, or left out."""
    facts = tuple(fact for fact in map(change, decision.facts) if fact is not None)
    return replace(decision, facts=facts)
