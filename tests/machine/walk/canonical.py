"""Scenes up to renaming: two that the machine cannot tell apart become one.

Ids are replaced by fixed ones, times become relative to now, and everything overdue is simply due. What
only people and the log look at is left out: version, hash, times of past events, texts of errors, why the
last turn failed, which card an answer is in. A person's hold stops `ends_by` and an open approval, so only
the time left when it began counts; every hold began a second ago. A cap beyond `ends_by` never comes. An
ended task has no times at all. Of the waits of a turn that went on it only matters which were answered; of
an intent, whose it is and when its time is over. test_canonical.py shows that nothing the machine looks at
is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import astuple, replace

from endwell.machine.clocks import arm
from endwell.model.approval import OpenApproval
from endwell.model.effect import Effect
from endwell.model.inside import Inside, inside_of
from endwell.model.message import Message
from endwell.model.moments import SECOND
from endwell.model.task import Task, counted_waits, has_wait_rows, packed_waits, waits_of
from endwell.model.wait import Wait
from endwell.policy.limits import Limits
from tests.machine.walk.scene import Scene

NOW: Final = 1_000 * SECOND
HOLDER: Final = "attempt"
STALE: Final = "an old attempt"
NEIGHBOUR: Final = "a neighbour's attempt"
CREATED: Final = NOW - 5 * SECOND
HELD_SINCE: Final = NOW - SECOND
UNSETTLED: Final = ("intended", "unknown")

Key = tuple[Any, ...]


def canonical_scene(scene: Scene, now: int, limits: Limits, *, with_steps: bool) -> Scene:
    """The same scene with fixed ids, at the moment NOW. Recorded steps count only where the world has any."""
    if scene.task is None:
        return scene
    return Scene(
        canonical(scene.task, now, limits.crash_window, with_steps=with_steps),
        tuple(_effect(effect, scene.task, now, limits.effect_margin) for effect in scene.effects),
        tuple(map(_message, scene.inbox, message_names(scene.inbox))),
        _told_waits(scene.wait_rows, scene.task, NOW - now),
    )


def canonical(task: Task, now: int, crash_window: int, *, with_steps: bool) -> Task:
    """The same task with fixed ids, at the moment NOW."""
    shift = NOW - now
    same = replace(
        task,
        created_at=CREATED,
        reason=task.reason if _counts(task.reason, task) else None,
        owner=task.owner if waits_for_person(task) else None,
        attempt_id=None if task.attempt_id is None else HOLDER,
        waits=_waits(task, shift),
        inside=_inside(task, shift, with_steps),
        crash_times=_crash_times(task, now, crash_window, shift),
        run_at=_due(task.run_at, shift, task),
        ring_at=_due(task.ring_at, shift, task),
        dispatch_by=_due(task.dispatch_by, shift, task),
        progress_by=_due(task.progress_by, shift, task),
        wait_by=_due(task.wait_by, shift, task),
        suspend_by=None if task.suspend_by is None else _due(min(task.suspend_by, task.ends_by), shift, task),
        remind_at=_due(task.remind_at, shift, task),
        expire_at=None if task.expire_at is None else _stoppable(task.expire_at, shift, task),
        recover_at=_due(task.recover_at, shift, task),
        guard_at=_due(task.guard_at, shift, task),
        held_since=None if task.held_since is None else HELD_SINCE,
        ends_by=_stoppable(task.ends_by, shift, task),
        epoch=0,
        version=0,
        started_at=None,
        ended_at=NOW if task.is_ended else None,
        updated_at=NOW,
    )
    clock_at, clock_rule = arm(same)
    return replace(same, clock_at=clock_at, clock_rule=clock_rule)


def _counts(reason: str | None, task: Task) -> bool:
    return task.is_ended or (task.status == "blocked" and reason in ("effect_unknown", "dispatch_timeout"))


def waits_for_person(task: Task) -> bool:
    """Whether it is blocked until a person acts: an owner is named, and reminded."""
    return task.status == "blocked" and task.remind_at is not None


def _stoppable(at: int, shift: int, task: Task) -> int:
    """A deadline that an accepted hold stops."""
    if task.held_since is not None:
        return max(at - task.held_since, 0) + HELD_SINCE
    return NOW if task.is_ended else max(at + shift, NOW)


def _due(at: int | None, shift: int, task: Task) -> Any:
    if at is None:
        return None
    return NOW if task.is_ended else max(at + shift, NOW)


def _waits(task: Task, shift: int) -> str | None:
    if task.waits is None:
        return None
    if has_wait_rows(task):
        return task.waits if task.status == "suspended" else counted_waits(0)
    return packed_waits(_told_waits(waits_of(task), task, shift))


def _told_waits(waits: tuple[Wait, ...], task: Task, shift: int) -> tuple[Wait, ...]:
    if task.waits is None:
        return ()
    if task.status == "suspended":
        return tuple(_wait(wait, shift) for wait in waits)
    asked_for = (Wait(w.tool_call_id, w.kind, NOW, w.wait_status) for w in waits if matters(w))
    return tuple(map(_settled, asked_for))


def matters(wait: Wait) -> bool:
    """Whether a wait of a turn that went on still says something: an answer to it is late, or refused."""
    return wait.kind != "timer" and (not wait.is_open or wait.kind in ("approval", "signal"))


def _wait(wait: Wait, shift: int) -> Wait:
    if not wait.is_open:
        return _settled(replace(wait, deadline=NOW, is_reported=False))
    return replace(wait, deadline=max(wait.deadline + shift, NOW))


def _settled(wait: Wait) -> Wait:
    status = "applied" if wait.is_answered else wait.wait_status
    return replace(wait, wait_status=status, result_card=None)


def _inside(task: Task, shift: int, with_steps: bool) -> str | None:
    if task.inside is None:
        return None
    inside = inside_of(task)
    if task.is_ended:
        same = Inside(asked=tuple(replace(one, votes=()) for one in inside.asked if one.id == task.id))
    else:
        same = Inside(
            run=inside.run,
            steps=min(inside.steps, 1) if with_steps else 0,
            intents=tuple(sorted(inside.intents)),
            draft=inside.draft and "draft",
            asked=tuple(map(_asked, inside.asked)),
            children=min(inside.children, 1),
            doing=_doing(task, inside, shift),
            nudges=min(inside.nudges, 1),
            held_for=inside.held_for,
            accepted_by=inside.accepted_by,
        )
    return None if same == Inside() else msgspec.json.encode(same).decode()


def _asked(one: OpenApproval) -> OpenApproval:
    return replace(one, votes=tuple(sorted(one.votes)))


def _doing(task: Task, inside: Inside, shift: int) -> tuple[tuple[str, int], ...]:
    """Only the attempt that began a step is waited for."""
    if task.status != "running":
        return ()
    return tuple(sorted((step, max(until + shift, NOW)) for step, until in inside.doing))


def _crash_times(task: Task, now: int, window: int, shift: int) -> str | None:
    if task.crash_times is None or task.is_ended:
        return None
    recent = [int(at) + shift for at in task.crash_times.split(",") if int(at) > now - window]
    return ",".join(map(str, recent)) or None


def _effect(effect: Effect, task: Task, now: int, margin: int) -> Effect:
    is_open, is_intended = effect.status in UNSETTLED, effect.status == "intended"
    not_after = max((effect.not_after or 0) + NOW - now, NOW - margin) if is_intended else None
    return replace(
        effect,
        task_id=effect.task_id if is_open else task.id,
        step="",
        attempt_id=_whose(effect, task) if is_open else None,
        session_id=None,
        not_after=not_after,
        result_card=effect.result_card and "card",
        result_hash=effect.result_hash and "hash",
        settled_by=None,
        version=0,
        created_at=NOW,
        updated_at=NOW,
    )


def _whose(effect: Effect, task: Task) -> str:
    if effect.task_id != task.id:
        return NEIGHBOUR
    return HOLDER if effect.attempt_id == task.attempt_id else STALE


def _message(message: Message, name: str) -> Message:
    return replace(
        message,
        id=name,
        turn_id=None,
        turn_epoch=None,
        card_id=message.card_id and "card",
        created_at=NOW,
    )


def message_names(inbox: Sequence[Message]) -> list[str]:
    """An inbox holds one message of a type about one thing; signals are told apart by who came first."""
    names: list[str] = []
    for message in inbox:
        about = message.correlation_id
        if message.message_type == "signal":
            about = str(sum(name.startswith("signal ") for name in names))
        names.append(f"{message.message_type} {about}")
    return names


def key_of(scene: Scene) -> Key:
    """What makes a canonical scene the same as another one; the clock follows from the rest."""
    task = scene.task
    if task is None:
        return ()
    beside = tuple((e.key, e.status, e.task_id, e.attempt_id, e.not_after, e.lineage) for e in scene.effects)
    messages = tuple((m.id, m.payload) for m in scene.inbox)
    waits = tuple(map(astuple, scene.wait_rows))
    return (
        task.family,
        task.status,
        task.reason,
        task.owner,
        task.dead_letter,
        task.superseded_by,
        task.turn_id,
        task.redelivery,
        task.session_id,
        task.slot,
        task.waits,
        task.inside,
        task.retry_count,
        task.dispatch_count,
        task.crash_count,
        task.crash_times,
        task.run_at,
        task.ring_at,
        task.dispatch_by,
        task.progress_by,
        task.wait_by,
        task.suspend_by,
        task.remind_at,
        task.expire_at,
        task.recover_at,
        task.guard_at,
        task.guard_reason,
        task.held_since,
        task.ends_by,
        beside,
        messages,
        waits,
    )
