"""The store as a turn in a child process sees it: every question goes to the worker, which asks its own.

`RemoteStore` is the child's side, `Desk` the worker's. What crosses is JSON of known types: a command with
the name of its type, an error with the name of its class; the type of an answer is that of its question.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from endwell import errors
from endwell.errors import EndwellError, Refused, StaleAttempt
from endwell.model import commands as c
from endwell.model.card import Card
from endwell.model.effect import Effect
from endwell.model.session import Session
from endwell.model.task import Task
from endwell.policy.ledger import LedgerAnswer
from endwell.store.rows import Reply
from endwell.worker.bench import Bench
from endwell.worker.suspended import Suspended

Ask = Callable[[str, Mapping[str, Any]], Awaitable[msgspec.Raw]]
"""Sends a request with what belongs to it, and waits for the answer."""


class ErrorSaid(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error of Endwell's tree; `type` names its class there."""

    type: str
    code: str
    message: str
    hint: str | None = None
    field: str | None = None
    task_id: str | None = None


class ReplySaid(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reply to one command of a turn."""

    task: Task | None = None
    refusal: ErrorSaid | None = None
    ledger: LedgerAnswer | None = None


class CommandSaid(msgspec.Struct, frozen=True):
    """A command with the name of its type."""

    type: str
    fields: dict[str, Any]


class WaitingSaid(msgspec.Struct, frozen=True):
    """What a suspended turn waits for, and the tasks that it calls."""

    calls: tuple[c.Call, ...]
    submits: tuple[c.Submit, ...]


COMMANDS: Final[Mapping[str, type[c.TaskCommand]]] = {
    kind.__name__: kind
    for kind in (
        c.Progress,
        c.Repeat,
        c.HearNudges,
        c.StartStep,
        c.RecordStep,
        c.KeepDraft,
        c.IntendEffect,
        c.FinishEffect,
        c.DoubtEffect,
        c.SettleEffect,
        c.Block,
    )
}
"""What a child may hand in, each for its own task and attempt only."""
_ANSWERS: Final[Mapping[str, msgspec.json.Decoder[Any]]] = {
    "commit": msgspec.json.Decoder(list[ReplySaid]),
    "now": msgspec.json.Decoder(int),
    "card": msgspec.json.Decoder(Card),
    "cards_between": msgspec.json.Decoder(list[Card]),
    "cards_by_ids": msgspec.json.Decoder(list[Card]),
    "effect": msgspec.json.Decoder(Effect | None),
    "session": msgspec.json.Decoder(Session | None),
    "agent": msgspec.json.Decoder(c.AgentSpec | None),
    "agents": msgspec.json.Decoder(list[c.AgentSpec]),
}
"""Every method that may be asked for, and how to read its answer."""


class RemoteStore:
    """In the child. A refusal is raised, or is in its reply, as the worker's store said it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def commit(self, commands: Sequence[c.Command]) -> list[Reply]:
        """Hand in commands of this turn."""
        said = [{"type": type(command).__name__, "fields": command} for command in commands]
        return [_reply(one) for one in await self._asked("commit", said)]

    async def now(self) -> int:
        """The store's time."""
        now: int = await self._asked("now")
        return now

    async def card(self, namespace: str, card_id: str) -> Card:
        """One card."""
        card: Card = await self._asked("card", namespace, card_id)
        return card

    async def cards_between(self, namespace: str, first: str, last: str) -> list[Card]:
        """The cards from one id up to another, which is not included."""
        cards: list[Card] = await self._asked("cards_between", namespace, first, last)
        return cards

    async def cards_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Card]:
        """Many cards at once, in no particular order."""
        cards: list[Card] = await self._asked("cards_by_ids", namespace, ids)
        return cards

    async def effect(self, namespace: str, key: str) -> Effect | None:
        """One effect."""
        effect: Effect | None = await self._asked("effect", namespace, key)
        return effect

    async def session(self, namespace: str, session_id: str) -> Session | None:
        """One session."""
        session: Session | None = await self._asked("session", namespace, session_id)
        return session

    async def agent(self, namespace: str, name: str) -> c.AgentSpec | None:
        """What is known of one agent."""
        spec: c.AgentSpec | None = await self._asked("agent", namespace, name)
        return spec

    async def agents(self, namespace: str) -> list[c.AgentSpec]:
        """All registered agents."""
        specs: list[c.AgentSpec] = await self._asked("agents", namespace)
        return specs

    async def _asked(self, method: str, *arguments: Any) -> Any:
        answer = await self._ask("store", {"method": method, "arguments": arguments})
        return _ANSWERS[method].decode(answer)


class Desk:
    """In the worker: answers one turn's questions, and hands in commands of that very turn."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._store = bench.store

    async def answer(self, method: str, arguments: Sequence[Any]) -> Any:
        """What the store says. `StaleAttempt` is raised, not answered: the turn is over then."""
        if method == "commit":
            return await self._commit([self._own(said) for said in _commands(arguments)])
        if method == "now":
            return await self._store.now()
        if method not in _ANSWERS:
            raise _refused(f"a turn may not ask the store for {method!r}")
        if list(arguments[:1]) != [self._bench.task.namespace]:
            raise _refused("a turn may ask about its own namespace only")
        try:
            question = getattr(self._store, method)(*arguments)
        except TypeError as error:
            raise _refused(f"{method} is not asked like this: {error}") from None
        return await question

    async def _commit(self, commands: Sequence[c.TaskCommand]) -> list[ReplySaid]:
        replies = await self._store.commit(commands)
        for reply in replies:
            if isinstance(reply.refusal, StaleAttempt):
                raise reply.refusal
        return [_reply_said(reply) for reply in replies]

    def _own(self, said: CommandSaid) -> c.TaskCommand:
        """The command, if it is one that this attempt may give."""
        kind = COMMANDS.get(said.type)
        if kind is None:
            raise _refused(f"a turn may not hand in {said.type!r}")
        try:
            command = msgspec.convert(said.fields, kind)
        except msgspec.ValidationError as error:
            raise _refused(f"this is no {said.type}: {error}") from None
        bench, task = self._bench, self._bench.task
        ours = (task.namespace, task.id, bench.attempt_id, bench.actor)
        theirs = (command.namespace, command.task_id, getattr(command, "attempt_id", None), command.actor)
        if theirs != ours:
            raise _refused("a turn may hand in commands of its own attempt only")
        return command

    def suspended(self, said: Any) -> Suspended:
        """What the turn waits for; whatever it submits must be its own child."""
        waiting, task = msgspec.convert(said, WaitingSaid), self._bench.task
        for submit in waiting.submits:
            if (submit.namespace, submit.parent_id) != (task.namespace, task.id):
                raise _refused("a turn may submit its own children only")
        return Suspended(waiting.calls, waiting.submits)


def waiting_said(waiting: Suspended) -> WaitingSaid:
    """A suspension as it crosses."""
    return WaitingSaid(waiting.calls, waiting.submits)


def error_said(error: EndwellError) -> ErrorSaid:
    """An error as it crosses; of a class that is not in the tree, its nearest ancestor there."""
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return ErrorSaid(kind.__name__, error.code, error.message, error.hint, error.field, error.task_id)


def error_of(said: ErrorSaid) -> EndwellError:
    """The error again: same class, same code."""
    kind = getattr(errors, said.type, None)
    if not isinstance(kind, type) or not issubclass(kind, EndwellError):
        kind = EndwellError
    error: EndwellError = kind.__new__(kind)
    about = {"code": said.code, "hint": said.hint, "field": said.field, "task_id": said.task_id}
    EndwellError.__init__(error, said.message, **about)
    return error


def _reply_said(reply: Reply) -> ReplySaid:
    refusal = None if reply.refusal is None else error_said(reply.refusal)
    return ReplySaid(reply.task, refusal, reply.ledger)


def _reply(said: ReplySaid) -> Reply:
    refusal = None if said.refusal is None else error_of(said.refusal)
    return Reply(task=said.task, refusal=refusal, ledger=said.ledger)


def _commands(arguments: Sequence[Any]) -> list[CommandSaid]:
    try:
        return msgspec.convert(arguments, tuple[list[CommandSaid]])[0]
    except msgspec.ValidationError as error:
        raise _refused(f"commands are not handed in like this: {error}") from None


def _refused(why: str) -> Refused:
    return Refused(why, code="not_of_this_turn")
