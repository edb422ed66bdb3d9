"""The worlds that are walked through: small ones to the last state in every run, large ones when asked."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from tests.machine.walk.world import SIGNAL, World, call, small_limits

TOOL: Final = call("tool", "w1", 1, content=b"1", content_hash="r")
LATER_TOOL: Final = call("tool", "w2", 2, content=b"1", content_hash="r")
TOOL_WITHOUT_CARD: Final = call("tool", "lost", 1)
TIMER: Final = call("timer", "timer", 1)
ASKED: Final = call("approval", "asked", 1, content=b"1", content_hash="r", by=("ada", "bob"), quorum=2)
CHANGED: Final = call("approval", "asked", 1, content=b"2", content_hash="s", by=("ada", "bob"), quorum=2)
ASKED_ONE: Final = call("approval", "one", 1, content=b"1", content_hash="r", by=("ada",))
AWAITED: Final = call("signal", "signal", 1, name=SIGNAL)
CHILD: Final = call("call", "child", 1, is_child=True)
FAMILY: Final[dict[str, Any]] = {"parent_id": "p", "parent_call": "p.s.1", "parent_agent": "planner"}
LEFT_ALONE: Final[dict[str, Any]] = {**FAMILY, "on_parent_end": "leave"}
# one of everything: enough to reach each status without filling the world
FEW: Final[dict[str, Any]] = {
    "max_retries": 1,
    "runaway_limit": 2,
    "crash_limit": 1,
    "crash_window": 1,
    "remind_every": 1,
    "active_reap": None,
    "ring_after": None,
    "dispatch_timeout": None,
}

# every command that does not reach into a turn; legal retries and crashes stay below the guard
ONE_TASK: Final = World(
    name="one task",
    limits=small_limits(max_retries=1, runaway_limit=6, crash_limit=2),
    submits=({}, {"approval_within": 3}, {"delay": 1}),
    retry_after=(None, 2),
    rule_comes_late=True,
)
# one tick for almost everything, so that two tasks can be walked through together
TWO_TASKS: Final = World(
    name="two tasks of one key",
    tasks=2,
    limits=small_limits(
        max_retries=1, runaway_limit=3, deadline=2, active_reap=1, remind_every=1, crash_window=1
    ),
    suspensions=((TIMER,),),
)
LOW_GUARD: Final = World(
    name="two tasks, the guard before the last retry",
    tasks=2,
    limits=small_limits(max_retries=2, runaway_limit=2, crash_limit=3, deadline=2, suspend_grace=0),
    suspensions=((TIMER,),),
)
RULES_OFF: Final = World(
    name="one task, rules switched off",
    limits=small_limits(deadline=3, ring_after=None, dispatch_timeout=None, active_reap=None),
    submits=({}, {"approval_within": 2}, {"parent_id": "p", "on_parent_end": "leave", "chain": 3}),
    suspensions=((TIMER,),),
)
EFFECTS: Final = World(
    name="one task, an effect and a neighbour that wants it too",
    limits=small_limits(**{**FEW, "deadline": 3}),
    submits=({}, {"approval_within": 1}),
    suspensions=((TIMER,),),
    cooldowns=(),
    effects=("mail",),
    with_neighbour=True,
    leases_hold=True,
)
STEPS: Final = World(
    name="one task, steps, drafts and a parent",
    limits=small_limits(**{**FEW, "deadline": 2, "active_reap": 1}),
    submits=(LEFT_ALONE, {**LEFT_ALONE, "approval_within": 1}),
    suspensions=((CHILD,),),
    cooldowns=(),
    with_steps=True,
    leases_hold=True,
)
WAITS: Final = World(
    name="one task, two tools",
    limits=small_limits(**{**FEW, "deadline": 3, "suspend_grace": 0}),
    suspensions=((TOOL, LATER_TOOL),),
    cooldowns=(),
    leases_hold=True,
)
OTHER_WAITS: Final = World(
    name="one task, a tool without a card and a signal",
    limits=small_limits(**{**FEW, "deadline": 3, "max_retries": 0}),
    submits=(FAMILY, {**FAMILY, "approval_within": 1}),
    suspensions=((TOOL_WITHOUT_CARD, AWAITED),),
    cooldowns=(),
    leases_hold=True,
)
WAIT_ROWS: Final = World(
    name="one task, two tools, each a row of its own",
    limits=small_limits(**{**FEW, "deadline": 3, "suspend_grace": 0, "waits_in_row": 0}),
    suspensions=((TOOL, LATER_TOOL),),
    cooldowns=(),
    leases_hold=True,
)
OTHER_ROWS: Final = World(
    name="one task, a signal and an approval, each a row of its own",
    limits=small_limits(**{**FEW, "deadline": 2, "max_retries": 0, "waits_in_row": 1}),
    suspensions=((ASKED_ONE, AWAITED),),
    cooldowns=(),
    people=("ada",),
    leases_hold=True,
)
APPROVALS: Final = World(
    name="one task, approvals inside and before it",
    limits=small_limits(**{**FEW, "deadline": 3}),
    submits=({}, {"approval_within": 1, "approval_by": ("ada", "bob"), "approval_quorum": 2}),
    suspensions=((ASKED,), (CHANGED,), (ASKED, LATER_TOOL)),
    cooldowns=(),
    people=("ada", "bob", "eve"),
    leases_hold=True,
)
CIRCLES: Final = World(
    name="one task that goes round in circles",
    limits=small_limits(**{**FEW, "deadline": 2, "active_reap": 1}),
    submits=({}, {"approval_within": 1}),
    suspensions=((TIMER,),),
    cooldowns=(),
    with_circles=True,
    leases_hold=True,
)
INSIDE: Final = (EFFECTS, STEPS, WAITS, OTHER_WAITS, WAIT_ROWS, OTHER_ROWS, APPROVALS, CIRCLES)
SMALL: Final = (ONE_TASK, TWO_TASKS, LOW_GUARD, RULES_OFF, *INSIDE)

WITH_APPROVAL: Final = World(
    name="two tasks of one key, with approvals",
    tasks=2,
    limits=small_limits(max_retries=1, deadline=2, active_reap=1, remind_every=1, crash_window=1),
    submits=({}, {"approval_within": 1}),
    suspensions=((TOOL,), (TIMER,)),
)
LONG_LIVES: Final = World(
    name="two tasks of one key, long lives",
    tasks=2,
    limits=small_limits(max_retries=2, runaway_limit=6, deadline=3),
    submits=({}, {"approval_within": 2}, {"delay": 1}),
    suspensions=((TOOL,), (TOOL, LATER_TOOL)),
)
TWO_EFFECTS: Final = World(
    name="one task, two effects and steps",
    limits=small_limits(**{**FEW, "deadline": 4}),
    suspensions=((TOOL, TIMER),),
    effects=("mail", "order"),
    with_steps=True,
    with_neighbour=True,
)
LARGE: Final = (WITH_APPROVAL, LONG_LIVES, TWO_EFFECTS)
NEW_SCENES: Final = 20
"""One state whose parts are all new takes as long as this number of states of two tasks."""


def worlds_of(seed: int, size: int) -> list[tuple[World, int | None]]:
    """The worlds of one piece of a campaign, and how many of their states; None is all of them.

    First those that have a name, then new ones. Nearly every state of one task is a new scene, and of a scene
    everything is asked; of two tasks most are made of scenes that are known by then, and cost little.
    """
    rest: list[tuple[World, int | None]] = [
        (world, None) for world in SMALL if world not in (TWO_TASKS, LOW_GUARD)
    ]
    named: list[list[tuple[World, int | None]]] = [[(TWO_TASKS, None)], [(LOW_GUARD, None)], rest]
    named += [[(world, size if world.tasks == 2 else size // NEW_SCENES)] for world in LARGE]
    return named[seed - 1] if seed <= len(named) else [(random_world(seed), size // NEW_SCENES)]


def random_world(seed: int) -> World:
    """Two tasks under limits of their own, with what may happen to them chosen by chance."""
    dice = Random(seed)
    limits = small_limits(
        max_retries=dice.randint(0, 2),
        runaway_limit=dice.randint(2, 6),
        crash_limit=dice.randint(1, 3),
        deadline=dice.randint(2, 4),
        active_reap=dice.choice((None, 1, 2)),
        ring_after=dice.choice((None, 1)),
        remind_every=dice.randint(1, 2),
        crash_window=dice.randint(1, 2),
        suspend_grace=dice.randint(0, 1),
        waits_in_row=dice.choice((0, 1, 32)),
    )
    waits = ((TIMER,), (TOOL,), (TOOL, LATER_TOOL), (TOOL_WITHOUT_CARD, AWAITED), (ASKED,), (TOOL, TIMER))
    submits: list[dict[str, Any]] = [{}, {"approval_within": 1}, {"delay": 1}, LEFT_ALONE]
    return World(
        name=f"random world {seed}",
        tasks=dice.choice((1, 2, 2)),
        limits=limits,
        submits=tuple(dice.sample(submits, dice.randint(1, 3))),
        suspensions=tuple(dice.sample(waits, dice.randint(1, 2))),
        retry_after=dice.choice(((None,), (None, 2))),
        with_steps=dice.random() < 0.3,
        with_circles=dice.random() < 0.2,
        effects=dice.choice(((), (), ("mail",))),
        with_neighbour=dice.random() < 0.2,
    )
