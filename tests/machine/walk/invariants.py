"""What must be true of every task at every moment, stated apart from the machine.

`check_state` looks at one scene, `check_step` (in steps.py) at one command and what came of it. The walk over
every state and the random walks share both. Tables here repeat the design on purpose: if the
machine's own tables change by mistake, these do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from endwell.model import status as s
from endwell.model.card import deliverable_id
from endwell.model.inside import deliveries_along, family_of, inside_of
from endwell.model.task import Task, has_wait_rows, open_waits
from endwell.policy.limits import Limits
from endwell.policy.retry import unpack_policy
from tests.machine.walk.scene import Scene
from tests.machine.walk.violation import must

LIVE: Final = ("waiting_approval", "queued", "dispatched", "running", "suspended", "blocked")

# rules in the order in which a fired clock must look at them: name, statuses, deadline
DUE_ORDER: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    ("ends_by", LIVE, "ends_by"),
    ("guard", LIVE, "guard_at"),
    ("reap", ("running",), "progress_by"),
    ("dispatch_timeout", ("dispatched",), "dispatch_by"),
    ("approval_expire", ("waiting_approval",), "expire_at"),
    ("inject_timeout", ("suspended",), "wait_by"),
    ("suspend_cap", ("suspended",), "suspend_by"),
    ("recover", ("blocked",), "recover_at"),
    ("approval_remind", ("waiting_approval", "suspended"), "remind_at"),
    ("remind", ("blocked",), "remind_at"),
    ("ring_again", ("dispatched",), "ring_at"),
)
_COUNTING: Final = {
    status: [(name, field) for name, statuses, field in DUE_ORDER if status in statuses] for status in s.ALL
}
CLOCK_RULES: Final = frozenset(name for name, _, _ in DUE_ORDER) | {"runaway_guard", "crash_limit"}

# how a task that ended for one of these reasons must have ended, and whether as a dead letter
ENDED_FOR: Final[dict[str, tuple[tuple[str, ...], bool]]] = {
    "ends_by": (("timeout",), True),
    "runaway_guard": (("failed",), True),
    "crash_limit": (("failed",), True),
    "dispatch_timeout": (("timeout",), True),
    "retries_exhausted": (("failed", "timeout"), True),
    "no_progress": (("failed",), True),
    "approval_rejected": (("failed",), False),
    "approval_expired": (("timeout",), False),
}
BY_STATUS: Final[dict[str, tuple[tuple[str, ...], bool]]] = {
    "succeeded": (("succeeded",), False),
    "cancelled": (("cancelled",), False),
    "failed": (("failed",), True),  # an error of the agent's own that is not to be retried
}


def deadlines_of(task: Task) -> list[tuple[int, str]]:
    """Every deadline that counts for the task now, in the order of the rules."""
    is_held = task.held_since is not None
    found = ((getattr(task, field), name) for name, field in _COUNTING[task.status])
    return [(at, name) for at, name in found if at is not None and not (is_held and name == "ends_by")]


def rule_due(task: Task, now: int) -> str | None:
    """The one rule that a clock fired now must carry out."""
    return next((name for at, name in deadlines_of(task) if at <= now), None)


def verdict_on(task: Task) -> tuple[tuple[str, ...], bool]:
    """As what a task with this reason may have ended, and whether it must be a dead letter."""
    if task.status in ("succeeded", "cancelled"):
        return BY_STATUS[task.status]
    return ENDED_FOR.get(task.reason or "", BY_STATUS["failed"])


def has_turn(task: Task) -> bool:
    """Whether the task has an open turn, and with it holds its agent's key."""
    return task.turn_id is not None


def max_retries(task: Task, limits: Limits) -> int:
    return unpack_policy(task.retry_policy, limits.retry).max_retries


def check_clock(task: Task) -> None:
    """A live task has a clock, and it is its earliest deadline; nothing but a hold goes beyond ends_by."""
    if task.is_ended:
        return
    must(task.clock_at is not None, f"a {task.status} task has no clock")
    must(task.clock_rule in CLOCK_RULES, f"{task.clock_rule} is no clock rule")
    earliest = min(at for at, _ in deadlines_of(task))
    must(task.clock_at == earliest, f"the clock of a {task.status} task is not its earliest deadline")
    is_cut = task.held_since is not None or earliest <= task.ends_by
    must(is_cut, "the clock is later than ends_by")


def _a_live_task_has_a_clock(task: Task, limits: Limits) -> None:
    check_clock(task)


def _an_ended_task_is_at_rest(task: Task, limits: Limits) -> None:
    if not task.is_ended:
        must(task.ended_at is None, "a live task has an end time")
        must(task.deliverable_card is None, "a live task has a deliverable")
        must(task.dead_letter is None, "a live task is a dead letter")
        return
    at_rest = (task.clock_at, task.clock_rule, task.attempt_id, task.session_id, task.turn_id, task.slot)
    must(at_rest == (None,) * 6, "an ended task still has a clock, a holder, a turn or a slot")
    must(task.guard_at is None and task.held_since is None, "an ended task is still guarded or held")
    must(task.ended_at is not None, "an ended task has no end time")
    must(task.deliverable_card == deliverable_id(task.id), "an ended task has no deliverable")


def _the_reason_fits_the_end(task: Task, limits: Limits) -> None:
    if not task.is_ended:
        return
    statuses, is_letter = verdict_on(task)
    must(task.status in statuses, f"a task that ended for {task.reason} is {task.status}")
    must((task.dead_letter is not None) == is_letter, f"dead letter or not is wrong for {task.reason}")
    if task.reason == "retries_exhausted":
        must(task.retry_count == max_retries(task, limits) + 1, "given up before or after its last retry")


def _running_means_held_by_one_attempt(task: Task, limits: Limits) -> None:
    is_running = task.status == s.RUNNING
    must((task.attempt_id is not None) == is_running, f"a {task.status} task and its attempt disagree")
    must((task.session_id is not None) == is_running, f"a {task.status} task and its session disagree")
    must((task.progress_by is not None) == is_running, f"a {task.status} task and progress_by disagree")
    must(task.redelivery is None or not is_running, "a running turn still counts as to be redelivered")


def _a_turn_is_open_where_it_must_be(task: Task, limits: Limits) -> None:
    if task.status in (s.DISPATCHED, s.RUNNING, s.SUSPENDED):
        must(has_turn(task), f"a {task.status} task has no turn")
    if task.status == s.WAITING_APPROVAL:
        must(not has_turn(task), "a task has a turn before it was approved")
    must(task.redelivery is None or has_turn(task), "a redelivery without a turn")
    must(task.waits is None or has_turn(task), "waits of a turn that has ended")
    is_occupied = task.status in (s.DISPATCHED, s.RUNNING)
    must(task.slot is None or is_occupied, f"a {task.status} task occupies a slot")


def _a_dispatched_turn_times_out(task: Task, limits: Limits) -> None:
    is_dispatched = task.status == s.DISPATCHED
    if is_dispatched and limits.dispatch_timeout is not None:
        must(task.dispatch_by is not None, "a dispatched turn has no timeout")
    if not is_dispatched:
        must((task.ring_at, task.dispatch_by) == (None, None), f"a {task.status} task waits to be claimed")


def _a_suspended_turn_watches_every_wait(task: Task, scene: Scene) -> None:
    if task.status != s.SUSPENDED:
        must((task.wait_by, task.suspend_by) == (None, None), f"a {task.status} task has wait deadlines")
        return
    waits = [wait for wait in scene.waits if wait.wait_status == "waiting"]
    must(bool(waits), "a suspended turn waits for nothing")
    must(len(waits) == open_waits(task), "the task counts other waits than are open")
    due = min((wait.deadline for wait in waits if not wait.is_reported), default=None)
    if has_wait_rows(task):
        is_watched = due is None or (task.wait_by is not None and task.wait_by <= due)
        must(is_watched, "wait_by comes after the next wait's own deadline")
    else:
        must(task.wait_by == due, "wait_by is not the next wait's own deadline")
    last = max(wait.deadline for wait in waits)
    must(task.suspend_by is not None and task.suspend_by >= last, "the cap cuts a wait short")
    must(last <= task.ends_by, "a wait goes beyond ends_by")
    asked = {wait.tool_call_id for wait in waits if wait.kind == "approval"}
    must(asked <= {one.id for one in inside_of(task).asked}, "an approval that was never requested")
    must((task.remind_at is not None) == bool(asked), "a reminder without an open approval, or none with one")


def _a_blocked_task_waits_for_a_person_or_cools(task: Task, limits: Limits) -> None:
    if task.status != s.BLOCKED:
        must(task.held_since is None, "a task is held without being blocked")
        must(task.recover_at is None, "a task cools down without being blocked")
        return
    is_persons = task.remind_at is not None
    must((task.recover_at is not None) != is_persons, "it neither waits for a person nor cools down, or both")
    must(not is_persons or bool(task.owner), "no person is named who must act")
    must(is_persons or task.held_since is None, "a cooldown stops ends_by")


def _only_an_accepted_hold_or_an_unknown_effect_stops_ends_by(task: Task, limits: Limits) -> None:
    if task.is_ended:
        return
    inside = inside_of(task)
    may_stop = bool(inside.accepted_by or inside.held_for)
    must(
        (task.held_since is not None) == may_stop,
        "ends_by stands still without a reason, or runs in spite of one",
    )


def _counters_stay_within_their_limits(task: Task, limits: Limits) -> None:
    is_over = task.is_ended or (task.status == s.BLOCKED and task.reason == "dispatch_timeout")
    allowed = max_retries(task, limits) + is_over
    must(task.retry_count <= allowed, f"retry_count is {task.retry_count} on a {task.status} task")
    delivered = deliveries_along(task)
    must(delivered <= limits.runaway_limit, "dispatched again after the runaway guard")
    must(task.crash_count <= limits.crash_limit, "redelivered again after the crash limit")
    times = task.crash_times.split(",") if task.crash_times else []
    must(len(times) <= task.crash_count, "more crash times than crashes")
    at_a_limit = delivered >= limits.runaway_limit or task.crash_count >= limits.crash_limit
    if family_of(task).chain:
        at_a_limit = at_a_limit or family_of(task).chain + 1 >= limits.runaway_limit
    if not task.is_ended:
        must((task.guard_at is not None) == at_a_limit, "the guard is set exactly at a limit")
        must((task.guard_reason is not None) == at_a_limit, "the guard names its reason")


def _only_an_approved_task_goes_on(task: Task, limits: Limits) -> None:
    if task.status == s.WAITING_APPROVAL:
        must(task.expire_at is not None, "an approval that cannot expire")
    if task.status not in (s.WAITING_APPROVAL, s.BLOCKED) and not task.is_ended:
        must(task.expire_at is None, f"a {task.status} task was never approved")


def _intents_belong_to_an_open_turn(task: Task, limits: Limits) -> None:
    intents = inside_of(task).intents
    must(len(intents) == len(set(intents)), "one intent twice")
    must(not intents or has_turn(task), "an intent of a turn that has ended")


STATE_RULES: Final[tuple[Callable[[Task, Limits], None], ...]] = (
    _a_live_task_has_a_clock,
    _an_ended_task_is_at_rest,
    _the_reason_fits_the_end,
    _running_means_held_by_one_attempt,
    _a_turn_is_open_where_it_must_be,
    _a_dispatched_turn_times_out,
    _a_blocked_task_waits_for_a_person_or_cools,
    _only_an_accepted_hold_or_an_unknown_effect_stops_ends_by,
    _counters_stay_within_their_limits,
    _only_an_approved_task_goes_on,
    _intents_belong_to_an_open_turn,
)


def check_state(scene: Scene, limits: Limits) -> None:
    """Everything that must hold of one task and the rows beside it, after any commands."""
    if scene.task is None:
        return
    for rule in STATE_RULES:
        rule(scene.task, limits)
    _a_suspended_turn_watches_every_wait(scene.task, scene)
    for effect in scene.effects:
        if effect.status == "intended" and effect.task_id == scene.task.id:
            must(effect.key in inside_of(scene.task).intents, "an effect in flight that its task forgot")


def check_keys(tasks: list[Task]) -> None:
    """At most one task has an open turn of an agent's key."""
    held = [(t.agent, t.agent_key) for t in tasks if has_turn(t) and t.agent_key is not None]
    must(len(held) == len(set(held)), "two turns of one agent key are open at once")
