"""The world of the random walks: tasks, shared effects, an inbox for each task, and a log of it all."""

from __future__ import annotations

from collections import Counter
from typing import Any

from endwell.machine.decide import decide
from endwell.machine.decision import Decision, Evidence
from endwell.machine.evolve import evolve
from endwell.machine.evolve_rows import EFFECT_FACTS, evolve_effect
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.effect import Effect
from endwell.model.message import Message
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.model.wait import Wait
from endwell.policy.ledger import AllowExecute
from endwell.policy.limits import Limits
from tests.machine.walk.invariants import has_turn
from tests.machine.walk.scene import Scene, beside, with_messages
from tests.machine.walk.steps import take

TASKS = ("t1", "t2", "t3")  # the first two share an agent's key; the third may be a child of the first
SESSIONS = ("s1", "s2", "s3")


class RandomWorld:
    """Every command is decided, checked, folded and logged as the door would do it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.now = 1_000_000 * SECOND
        self.tasks: dict[str, Task] = {}
        self.effects: dict[str, Effect] = {}
        self.wait_rows: dict[str, tuple[Wait, ...]] = dict.fromkeys(TASKS, ())
        self.inboxes: dict[str, tuple[Message, ...]] = dict.fromkeys(TASKS, ())
        self.messages: dict[str, str] = {}
        self.cards: set[str] = set()
        self.log: list[tuple[str, str, bytes, int]] = []
        self.live = dict.fromkeys(SESSIONS, True)
        self.attempts: list[str] = ["unknown"]
        self.allowed: Counter[str] = Counter()
        self.not_done: Counter[str] = Counter()
        self._commands = 0

    def give(self, kind: type[c.TaskCommand], task_id: str, *, late: int = 0, **options: Any) -> Decision:
        """Give the command, decided by a clock that is `late`."""
        self._commands += 1
        options = {"command_id": f"c{self._commands}", "actor": "bob", **options}
        command = kind(namespace="n", task_id=task_id, **options)
        scene = self.scene(task_id)
        now = max(self.now - late, scene.task.updated_at if scene.task else 0)
        seen = beside(scene, command, self._seen(task_id, options.get("session_id")), frozenset(self.cards))
        decision = decide(scene.task, command, self.now - late, self.limits, seen)
        self._keep(task_id, take(scene, command, decision, now, self.limits, seen), decision, now)
        self._count(command, decision)
        return decision

    def scene(self, task_id: str) -> Scene:
        effects = tuple(self.effects[key] for key in sorted(self.effects))
        return Scene(self.tasks.get(task_id), effects, self.inboxes[task_id], self.wait_rows[task_id])

    def _seen(self, task_id: str, session_id: str | None) -> Evidence:
        holders = [t.id for t in self.tasks.values() if t.agent_key and has_turn(t)]
        holder = holders[0] if holders and task_id in TASKS[:2] else None
        return Evidence(session_is_live=self.live.get(session_id or "", True), key_holder=holder)

    def _keep(self, task_id: str, scene: Scene, decision: Decision, now: int) -> None:
        if scene.task is not None:
            self.tasks[task_id] = scene.task
        self.effects = {effect.key: effect for effect in scene.effects}
        self.inboxes[task_id] = scene.inbox
        self.wait_rows[task_id] = scene.wait_rows
        for message in decision.messages:
            if message.task_id in TASKS and message.task_id != task_id:
                self.inboxes[message.task_id] = with_messages(self.inboxes[message.task_id], [message])
            self.messages.setdefault(message.id, message.status)
        for closing in decision.closed:
            self.messages[closing.message_id] = closing.status
        self.cards |= {card.id for card in decision.cards if card.kind == "tool.call"}
        self.log += [(task_id, fact.type, f.encode(fact), now) for fact in decision.facts]

    def _count(self, command: c.TaskCommand, decision: Decision) -> None:
        """How often an effect's function may have been called, and how often its outcome was "not done"."""
        if isinstance(decision.ledger, AllowExecute) and isinstance(command, c.IntendEffect):
            self.allowed[command.key] += 1
        if isinstance(command, c.SettleEffect) and command.verdict == "not_done" and decision.facts:
            self.not_done[command.key] += 1

    def facts_of(self, task_id: str) -> list[f.Fact]:
        return [f.decode(type_, 1, data) for owner, type_, data, _ in self.log if owner == task_id]

    def replayed(self) -> tuple[dict[str, Task], dict[str, Effect]]:
        """What the log alone comes to."""
        tasks: dict[str, Task] = {}
        effects: dict[str, Effect] = {}
        for task_id, type_, data, at in self.log:
            fact = f.decode(type_, 1, data)
            if isinstance(fact, EFFECT_FACTS):
                effects[fact.key] = evolve_effect(effects.get(fact.key), fact, tasks[task_id], at)
            tasks[task_id] = evolve(tasks.get(task_id), fact, at, namespace="n", task_id=task_id)
        return tasks, effects
