"""The gateway of a child process to the store: questions about its own task, commands of its own attempt.

The child is not trusted. It reads the cards of its own task, the answers that its own calls got, and the
effects that its own turn asked for. The approval rules of its calls, and whether the holder of an effect is
gone, are found out here; what the child says about them does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from endwell.errors import EndwellError, StaleAttempt
from endwell.external.child_protocol import (
    PAGE_CARDS,
    UNREADABLE,
    ChildTask,
    CommandMessage,
    ReplyMessage,
    SuspensionMessage,
    reply_message,
)
from endwell.external.command_checks import check_block, check_call, check_child, checked_command, not_allowed
from endwell.model import commands as c
from endwell.model import content
from endwell.model.card import Card, records_between
from endwell.model.effect import Effect
from endwell.model.inside import lineage_of
from endwell.model.session import Session
from endwell.policy import ledger
from endwell.policy.submitting import ChildCall, child_order, unknown_agent
from endwell.policy.waiting import refuse_too_many, refuse_twice
from endwell.store.rows import Reply
from endwell.turn.effect_verdict import is_holder_gone
from endwell.turn.recorder import REFERRING, Recorder, referred_id
from endwell.turn.suspension import Suspended
from endwell.turn.waits import approval_time

MOST_COMMANDS: Final = 16
"""Most commands in one request; a verb sends one or two."""
_ARGUMENTS: Final[Mapping[str, Any]] = {
    "commit": tuple[list[CommandMessage]],
    "card": tuple[str, str],
    "cards_page": tuple[str, str, str, int],
    "cards_by_ids": tuple[str, list[str]],
    "effect": tuple[str, str],
    "session": tuple[str, str],
    "agent": tuple[str, str],
    "agents": tuple[str],
}
"""The methods that a child may call besides `now`, with the types of their arguments."""
_PAUSE_EVERY: Final = 64
"""Calls of one suspension that are checked before other turns of the worker run."""


class Gateway:
    """One per turn in a child process."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._store = recorder.store
        self._namespace = recorder.task.namespace
        self._lineage = lineage_of(recorder.task)
        self._asked_effects: set[str] = set()
        self._begun_effects: set[str] = set()
        self._sessions: set[str] = set()
        self._cards: set[str] = set()
        self._answering: set[str] = set()
        self.is_handed_over = False
        """Whether this turn has put its task into a person's hands."""

    async def answer(self, method: str, arguments: msgspec.Raw) -> Any:
        """The store's answer. `StaleAttempt` is raised, not answered: the turn is over then."""
        if method == "now":
            return await self._store.now()
        if method not in _ARGUMENTS:
            raise not_allowed(f"a turn may not ask the store for {method[:100]!r}")
        try:
            given = msgspec.json.decode(arguments, type=_ARGUMENTS[method])
        except UNREADABLE as error:
            raise not_allowed(f"{method} is not asked like this: {error}") from None
        if method == "commit":
            return await self._commit(*given)
        if given[0] != self._namespace:
            raise not_allowed("a turn may ask about its own namespace only")
        parts = (each for part in given for each in (part if isinstance(part, list) else [part]))
        if any(isinstance(each, str) and not each.isprintable() for each in parts):
            raise not_allowed("nothing is named like this")
        return await getattr(self, f"_{method}")(*given[1:])

    # Questions

    async def _card(self, card_id: str) -> Card:
        self._refuse_foreign([card_id])
        card = await self._store.card(self._namespace, card_id)
        self._note_answers([card])
        return card

    async def _cards_page(self, after: str, before: str, limit: int) -> list[Card]:
        lowest, highest = records_between(self._recorder.task.id, self._recorder.run)
        if not lowest <= after <= highest or before != highest or limit != PAGE_CARDS:
            raise not_allowed("a turn may read the records of its own run only, page by page")
        cards = await self._store.cards_page(self._namespace, after, highest, PAGE_CARDS)
        self._cards |= {ref for card in cards if card.kind in REFERRING and (ref := referred_id(card))}
        return cards

    async def _cards_by_ids(self, ids: list[str]) -> list[Card]:
        if len(ids) > PAGE_CARDS:
            raise not_allowed(f"a turn may ask for {PAGE_CARDS} cards at once")
        self._refuse_foreign(ids)
        cards = await self._store.cards_by_ids(self._namespace, ids)
        self._note_answers(cards)
        return cards

    def _refuse_foreign(self, ids: Sequence[str]) -> None:
        """Refuse cards of other tasks, unless this turn's records or the ledger named them."""
        own = f"{self._recorder.task.id}."
        for card_id in ids:
            if not card_id.startswith(own) and card_id not in self._cards and not self._is_draft(card_id):
                raise not_allowed("a turn may read the cards of its own task only")

    def _is_draft(self, card_id: str) -> bool:
        """Whether it is a draft of a task that this one has called and that has ended."""
        task_id, _, rest = card_id.partition(".")
        return task_id in self._answering and rest.startswith("draft")

    def _note_answers(self, cards: Sequence[Card]) -> None:
        self._answering |= {card.task_id for card in cards if card.kind == "task.deliverable"}

    async def _effect(self, key: str) -> Effect | None:
        """One effect. If it is another task's, with the same key and arguments, only whether it is open."""
        if key not in self._asked_effects:
            raise not_allowed("a turn may ask about effects that it has asked for itself")
        effect = await self._store.effect(self._namespace, key)
        if effect is None:
            return None
        if effect.lineage != self._lineage:
            return replace(effect, task_id="", lineage="", session_id=None, attempt_id=None, settled_by=None)
        if effect.session_id is not None:
            self._sessions.add(effect.session_id)
        return effect

    async def _session(self, session_id: str) -> Session | None:
        if session_id not in self._sessions:
            raise not_allowed("a turn may ask about the session that holds an effect of its own only")
        return await self._store.session(self._namespace, session_id)

    async def _agent(self, name: str) -> c.AgentSpec | None:
        return await self._store.agent(self._namespace, name)

    async def _agents(self) -> list[c.AgentSpec]:
        return await self._store.agents(self._namespace)

    # Commands

    async def _commit(self, given: list[CommandMessage]) -> list[ReplyMessage]:
        if not 0 < len(given) <= MOST_COMMANDS:
            raise not_allowed(f"a turn may hand in {MOST_COMMANDS} commands at once")
        commands = [await self._admit_command(checked_command(self._recorder, each)) for each in given]
        replies = await self._store.commit(commands)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply.refusal, StaleAttempt):
                raise reply.refusal
            self._widen_access(command, reply)
        return [reply_message(reply) for reply in replies]

    async def _admit_command(self, command: c.TaskCommand) -> c.TaskCommand:
        """The command as it may be committed; an effect must be this turn's own."""
        match command:
            case c.IntendEffect():
                await self._refuse_foreign_doubt(command.key)
            case c.FinishEffect() | c.DoubtEffect():
                if command.key not in self._begun_effects:
                    raise not_allowed("a turn may say how an effect ended that it has begun itself")
            case c.SettleEffect():
                return await self._checked_settlement(command)
            case c.Block():
                check_block(command)
                if command.effect_key not in self._asked_effects:
                    raise not_allowed("a turn may ask a person about an effect of its own only")
        return command

    async def _refuse_foreign_doubt(self, key: str) -> None:
        """Refuse an effect that another task left open: asking for it would make it this task's."""
        effect = await self._store.effect(self._namespace, key)
        if effect is None or effect.lineage == self._lineage or effect.is_settled:
            return
        now, margin = await self._store.now(), self._recorder.limits.effect_margin
        if effect.status == "unknown" or now >= (effect.not_after or 0) + margin:
            raise not_allowed(f"the outcome of the effect {key!r} is not known, and another task began it")

    async def _checked_settlement(self, command: c.SettleEffect) -> c.SettleEffect:
        effect = None
        if command.key in self._asked_effects:
            effect = await self._store.effect(self._namespace, command.key)
        if effect is None or self._lineage != effect.lineage:
            raise not_allowed("a turn may settle effects of its own task only")
        is_gone = command.holder_gone and await is_holder_gone(self._recorder, command.key)
        return replace(command, holder_gone=is_gone)

    def _widen_access(self, command: c.TaskCommand, reply: Reply) -> None:
        """Remember what the turn may ask for from now on."""
        if isinstance(command, c.Block) and reply.refusal is None:
            self.is_handed_over = True
        if not isinstance(command, c.IntendEffect) or reply.refusal is not None:
            return
        match reply.ledger:
            case None | ledger.Rejected(code="effect_conflict"):
                return
            case ledger.AllowExecute():
                self._begun_effects.add(command.key)
            case ledger.ReturnRecordedResult(card=card):
                self._cards.add(card)
        self._asked_effects.add(command.key)

    # Waits

    async def checked_suspension(self, message: msgspec.Raw) -> Suspended:
        """The turn's suspension. The tasks that answer its calls are submitted by the worker's own rules."""
        waiting = msgspec.json.decode(message, type=SuspensionMessage)
        if unfit := refuse_too_many(waiting.calls) or refuse_twice(waiting.calls):
            raise unfit
        children = {child.tool_call_id: child for child in waiting.children}
        if not waiting.calls:
            raise not_allowed("a turn that waits names what it waits for")
        left = max(self._recorder.task.ends_by - await self._recorder.ask_store(self._store.now), 0)
        calls: list[c.Call] = []
        submits: list[c.Submit] = []
        for number, call in enumerate(waiting.calls):
            if number % _PAUSE_EVERY == 0:
                await self._recorder.runtime.sleep(0)
            check_call(self._recorder, call)
            spec = await self._answering_spec(call, children.get(call.tool_call_id))
            if spec is None:
                calls.append(call)
                continue
            own, submit = self._child_call(call, children.pop(call.tool_call_id), spec, left)
            calls.append(own)
            submits.append(submit)
        if children:
            raise not_allowed("a turn may submit tasks that answer its own calls only")
        return Suspended(tuple(calls), tuple(submits))

    async def _answering_spec(self, call: c.Call, child: ChildTask | None) -> c.AgentSpec | None:
        """The agent or tool that answers a call; None if a program outside does."""
        directory = self._recorder.directory
        if call.is_child != (child is not None):
            raise not_allowed("a call that another task answers must come with that task, and no other call")
        if child is None:
            if call.kind == "call":
                raise not_allowed("a call of an agent must come with the task that answers it")
            known = None
            if call.kind == "tool":
                known = await self._recorder.ask_store(lambda: directory.spec_of(call.name))
            if known is not None:
                raise not_allowed(f"the tool {call.name} is registered: its own worker answers it")
            return None
        check_child(call, child)
        spec = await self._recorder.ask_store(lambda: directory.spec_of(child.agent))
        if spec is None:
            raise unknown_agent(child.agent, [])
        if (spec.kind == "tool") != (call.kind == "tool"):
            raise not_allowed(f"{child.agent} is not called like this")
        return spec

    def _child_call(
        self, call: c.Call, child: ChildTask, spec: c.AgentSpec, left: int
    ) -> tuple[c.Call, c.Submit]:
        guard = self._recorder.directory.approval_guard(spec)
        within = min(max(call.within - child.deciding, 0) + approval_time(guard), left)
        order = ChildCall(
            tool_call_id=call.tool_call_id,
            agent_key=child.agent_key,
            within=left if child.on_parent_end == "leave" else within,
            on_parent_end=child.on_parent_end,
        )
        payload = content.decode(child.payload)
        submit = child_order(self._recorder.task, order, spec, payload, guard)
        return replace(call, within=within), submit


def is_refusal(error: BaseException) -> bool:
    """Whether it is an answer to the child; a lost turn, or a defect of ours, is none."""
    return isinstance(error, EndwellError) and not isinstance(error, StaleAttempt)
