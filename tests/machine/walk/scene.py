"""A task with what lies beside it: the effects that it may have a part in, and its inbox."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from endwell.machine import evolve as machine
from endwell.machine import evolve_rows as ledger
from endwell.machine.decision import Decision, Evidence
from endwell.machine.evolve_rows import EFFECT_FACTS, evolve_waits
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.effect import Effect
from endwell.model.message import Message, report_of
from endwell.model.task import Task, has_wait_rows, waits_of
from endwell.model.wait import Wait
from tests.machine.walk.violation import must


class Scene(msgspec.Struct, frozen=True, gc=False):
    """Effects in the order of their keys; of the inbox what is pending, oldest first; waits that are rows."""

    task: Task | None = None
    effects: tuple[Effect, ...] = ()
    inbox: tuple[Message, ...] = ()
    wait_rows: tuple[Wait, ...] = ()

    @property
    def waits(self) -> tuple[Wait, ...]:
        """What the turn waits for, or waited for, wherever that is kept."""
        if self.task is None:
            return ()
        return self.wait_rows if has_wait_rows(self.task) else waits_of(self.task)

    def effect(self, key: str) -> Effect | None:
        return next((effect for effect in self.effects if effect.key == key), None)


def after(scene: Scene, command: c.TaskCommand, decision: Decision, now: int) -> Scene:
    """The scene once everything that was decided has been written."""
    task, effects, rows = scene.task, scene.effects, scene.wait_rows
    for fact in decision.facts:
        must(type(fact) is f.BY_TYPE.get(fact.type), f"{fact.type} has no place in the log")
        if isinstance(fact, EFFECT_FACTS):
            must(task is not None, "an effect of no task")
            known = next((effect for effect in effects if effect.key == fact.key), None)
            if task is not None:
                effects = _with(effects, ledger.evolve_effect(known, fact, task, now))
        rows = _with_waits(rows, fact)
        task = machine.evolve(task, fact, now, namespace=command.namespace, task_id=command.task_id)
    if not decision.messages and not decision.closed:
        return Scene(task, effects, scene.inbox, rows)
    return Scene(task, effects, _delivered(scene.inbox, decision, command.task_id), rows)


def _with_waits(rows: tuple[Wait, ...], fact: f.Fact) -> tuple[Wait, ...]:
    """The rows of a turn's waits, as the store keeps them."""
    match fact:
        case f.WaitsAdded():
            again = {wait.tool_call_id for wait in fact.waits}
            return (*(wait for wait in rows if wait.tool_call_id not in again), *fact.waits)
        case f.WaitAnswered() | f.WaitExpired():
            return evolve_waits(rows, fact)
        case f.TaskBlocked():
            return tuple(replace(wait, wait_status="dropped") if wait.is_open else wait for wait in rows)
        case f.TurnEnded():
            return ()
    return rows


def _with(effects: tuple[Effect, ...], new: Effect) -> tuple[Effect, ...]:
    others = [effect for effect in effects if effect.key != new.key]
    return tuple(sorted([*others, new], key=lambda effect: effect.key))


def _delivered(inbox: tuple[Message, ...], decision: Decision, task_id: str) -> tuple[Message, ...]:
    closed = {closing.message_id for closing in decision.closed}
    left = [message for message in inbox if message.id not in closed]
    return with_messages(tuple(left), (m for m in decision.messages if m.task_id == task_id))


def with_messages(inbox: tuple[Message, ...], messages: Iterable[Message]) -> tuple[Message, ...]:
    """An inbox takes a message once by type and by what it is about. A `stop` is not for the task itself."""
    for message in messages:
        about = (message.message_type, message.correlation_id)
        is_known = any((m.message_type, m.correlation_id) == about for m in inbox)
        if message.status == "pending" and message.message_type != "stop" and not is_known:
            inbox = (*inbox, message)
    return inbox


def beside(scene: Scene, command: c.TaskCommand, seen: Evidence, cards: frozenset[str]) -> Evidence:
    """What the door reads beside the task for such a command; `cards` are the `tool.call` cards there are."""
    match command:
        case c.IntendEffect() | c.FinishEffect() | c.DoubtEffect() | c.SettleEffect():
            return replace(seen, effect=scene.effect(command.key))
        case c.Suspend() | c.HearNudges():
            return replace(seen, messages=scene.inbox) if scene.inbox else seen
        case c.Deliver(message_id=wanted) | c.SkipMessage(message_id=wanted):
            messages = tuple(message for message in scene.inbox if message.id == wanted)
            return replace(seen, messages=messages, waits=_waits_for(scene, command, messages))
        case c.InjectTimeout() | c.ClockFired():
            return _with_next_waits(scene, replace(seen, calls=cards) if cards else seen)
        case c.Answer() | c.Signal() | c.Approve() | c.Reject():
            return replace(seen, waits=found) if (found := _waits_for(scene, command, ())) else seen
    return seen


def _waits_for(scene: Scene, command: c.TaskCommand, messages: tuple[Message, ...]) -> tuple[Wait, ...]:
    """A command is shown the one wait with a row that it may settle."""
    if scene.task is None or not has_wait_rows(scene.task):
        return ()
    signal = getattr(command, "name", None)
    call = getattr(command, "tool_call_id", None) or getattr(command, "approval_id", None)
    for message in messages:
        call = message.correlation_id
        signal = report_of(message).name if message.message_type == "signal" else None
    if signal is None:
        return tuple(wait for wait in scene.wait_rows if wait.tool_call_id == call)
    waiting = (w for w in scene.wait_rows if w.is_open and w.kind == "signal" and w.name == signal)
    return tuple(waiting)[:1]


def _with_next_waits(scene: Scene, seen: Evidence) -> Evidence:
    """A clock is shown one wait at a time here, so that the deadline behind it counts."""
    if scene.task is None or not has_wait_rows(scene.task):
        return seen
    waiting = [wait for wait in scene.wait_rows if wait.is_open and not wait.is_reported]
    waiting.sort(key=lambda wait: wait.deadline)
    beyond = waiting[1].deadline if len(waiting) > 1 else None
    return replace(seen, waits=tuple(waiting[:1]), beyond=beyond)
