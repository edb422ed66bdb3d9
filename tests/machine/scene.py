"""A task with what lies beside it: the effects that it may have a part in, and its inbox."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from endwell.machine import evolve as machine
from endwell.machine import evolve_effect as ledger
from endwell.machine.decision import Decision, Seen
from endwell.machine.evolve_effect import EFFECT_FACTS
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.effect import Effect
from endwell.model.message import Message
from endwell.model.task import Task
from tests.machine.violation import must


class Scene(msgspec.Struct, frozen=True, gc=False):
    """Effects in the order of their keys; of the inbox what is pending, oldest first."""

    task: Task | None = None
    effects: tuple[Effect, ...] = ()
    inbox: tuple[Message, ...] = ()

    def effect(self, key: str) -> Effect | None:
        return next((effect for effect in self.effects if effect.key == key), None)


def after(scene: Scene, command: c.TaskCommand, decision: Decision, now: int) -> Scene:
    """The scene once everything that was decided has been written."""
    task, effects = scene.task, scene.effects
    for fact in decision.facts:
        must(type(fact) is f.BY_TYPE.get(fact.type), f"{fact.type} has no place in the log")
        if isinstance(fact, EFFECT_FACTS):
            must(task is not None, "an effect of no task")
            known = next((effect for effect in effects if effect.key == fact.key), None)
            if task is not None:
                effects = _with(effects, ledger.evolve_effect(known, fact, task, now))
        task = machine.evolve(task, fact, now, namespace=command.namespace, task_id=command.task_id)
    if not decision.messages and not decision.closed:
        return Scene(task, effects, scene.inbox)
    return Scene(task, effects, _delivered(scene.inbox, decision, command.task_id))


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


def beside(scene: Scene, command: c.TaskCommand, seen: Seen, cards: frozenset[str]) -> Seen:
    """What the door reads beside the task for such a command; `cards` are the `tool.call` cards there are."""
    match command:
        case c.IntendEffect() | c.FinishEffect() | c.DoubtEffect() | c.SettleEffect():
            return replace(seen, effect=scene.effect(command.key))
        case c.Suspend() | c.Deliver() | c.SkipMessage() | c.HearNudges():
            return replace(seen, messages=scene.inbox) if scene.inbox else seen
        case c.InjectTimeout() | c.ClockFired():
            return replace(seen, calls=cards) if cards else seen
    return seen
