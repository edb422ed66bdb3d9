"""How a small defect is planted into the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from endwell.machine import clock_actions, decide, evolve
from endwell.machine.decision import Decision
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.task import Task

Plant = Callable[[pytest.MonkeyPatch], None]


def handler(kind: type[c.Command], change: Callable[..., Decision]) -> Plant:
    """The command's handler with something wrong about it; `change` gets the right one first."""
    allowed, right = decide.TABLE[kind]
    return lambda patch: patch.setitem(
        decide.TABLE,
        kind,
        (allowed, lambda *args: change(right, *args)),
    )


def folded(kind: type[f.Fact], change: Callable[[Task, Task, Any], Task]) -> Plant:
    """The fact's fold with something wrong about it; `change` gets the task before and after."""
    right = evolve._FOLDS[kind]
    wrong = lambda task, fact, at: change(task, right(task, fact, at), fact)  # noqa: E731
    return lambda patch: patch.setitem(evolve._FOLDS, kind, wrong)


def rule(name: str, change: Callable[[Decision, Task], Decision]) -> Plant:
    """The clock rule's action with something wrong about it."""
    right = clock_actions.FIRED[name]
    wrong = lambda task, *args: change(right(task, *args), task)  # noqa: E731
    return lambda patch: patch.setitem(clock_actions.FIRED, name, wrong)


def replaced(module: Any, name: str, wrong: Any) -> Plant:
    """Another function in the place of the right one."""
    return lambda patch: patch.setattr(module, name, wrong)


def with_facts(decision: Decision, change: Callable[[Any], f.Fact | None]) -> Decision:
    """The decision with its facts changed, or left out."""
    facts = tuple(fact for fact in map(change, decision.facts) if fact is not None)
    return replace(decision, facts=facts)
