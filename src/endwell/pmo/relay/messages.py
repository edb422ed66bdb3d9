"""From the log to `evt.agent.<agent>.state`, `.task` and `.step`: which fact says what outside. Pure.

Every message is one CloudEvent in structured JSON. Its id is derived from the event's, so it is the same
however often it is sent, and whoever receives it can tell a repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from endwell.doorbell.subjects import VERSION, subject
from endwell.model import facts as f
from endwell.model.moments import moment
from endwell.model.step_names import is_completed, names_of
from endwell.model.task import ErrorInfo, Task
from endwell.store.log import Logged

SUFFIXES: Final = ("state", "task", "step")
LONGEST_MESSAGE: Final = 500
"""Characters of an error's text that are told outside."""

_FINAL: Final = (f.SucceededEnding, f.FailedEnding, f.TimedOutEnding, f.CancelledEnding)
_WORDS: Final[dict[type[f.Fact], tuple[str, str]]] = {
    f.SucceededEnding: ("success", "succeeded"),
    f.FailedEnding: ("failed", "failed"),
    f.TimedOutEnding: ("timeout", "timeout"),
    f.CancelledEnding: ("canceled", "cancelled"),
}
"""How an end is called outside, and the status of the task."""
_encoder = msgspec.json.Encoder()

Turns = MutableMapping[str, str | None]
"""The turn that each task was in at the last event that was seen of it."""
Said = tuple[str, dict[str, Any]]
"""A suffix, and the data of the message."""


class Outgoing(msgspec.Struct, frozen=True):
    """One message: where it belongs, its id, and the CloudEvent as it is sent."""

    subject: str
    id: str
    body: bytes

    @property
    def event_id(self) -> str:
        """The event that it tells of; one event may be told in several messages."""
        return self.id.rpartition(".")[0]


def messages(
    page: Sequence[Logged], tasks: Mapping[str, Task], turns: Turns, suffixes: Sequence[str] = SUFFIXES
) -> Iterator[Outgoing]:
    """What these events say, in their order. The events of one commit must be together."""
    for _, run in groupby(page, key=lambda one: (one.event.task_id, one.event.command_id)):
        commit = list(run)
        task = tasks.get(commit[0].event.task_id)
        if task is None:
            continue  # its row is gone: `events verify` tells of that
        facts = [one.event.fact for one in commit]
        for one, fact in zip(commit, facts, strict=True):
            _follow(turns, task, fact)
            for suffix, data in _said(task, one, fact, facts, turns):
                if suffix in suffixes:
                    yield _outgoing(task, one, suffix, data)


def _follow(turns: Turns, task: Task, fact: f.Fact) -> None:
    if isinstance(fact, f.TaskDispatched | f.TurnEnded):
        turns[task.id] = fact.turn_id
    elif isinstance(fact, f.TaskCreated):
        turns[task.id] = None


def turn_after(facts: Iterable[f.Fact]) -> str | None:
    """The turn that a task is in, or was in last, after these facts."""
    turn = None
    for fact in facts:
        turn = fact.turn_id if isinstance(fact, f.TaskDispatched) else turn
    return turn


def _said(task: Task, one: Logged, fact: f.Fact, commit: list[f.Fact], turns: Turns) -> list[Said]:
    if isinstance(fact, f.TurnEnded):
        return _turn_ended(task, one, fact, commit)
    if isinstance(fact, f.TaskReaped):
        return [_reaped(task, one, fact, commit, turns.get(task.id))]
    if isinstance(fact, _FINAL):
        if any(isinstance(each, f.TurnEnded) for each in commit):
            return []  # said with the turn's end
        return [("task", _ended(task, one, fact, None, commit))]
    if isinstance(fact, f.TaskBlocked) and any(isinstance(each, f.TurnEnded) for each in commit):
        return []  # said with the turn's end
    say = _SAYS.get(type(fact))
    return [] if say is None else [say(task, one, fact, turns.get(task.id))]


def _turn_ended(task: Task, one: Logged, fact: f.TurnEnded, commit: list[f.Fact]) -> list[Said]:
    """The agent is idle again; then comes the one `task` event of the turn."""
    last = next((each for each in commit if isinstance(each, _FINAL)), None)
    ended = _ended(task, one, last, fact, commit)
    state = _state(one, task, "idle", fact.turn_id, fact.epoch, error=ended["error"])
    return [("state", state), ("task", ended)]


def _ended(
    task: Task, one: Logged, last: f.Fact | None, turn: f.TurnEnded | None, commit: list[f.Fact]
) -> dict[str, Any]:
    status, task_status = _WORDS[type(last)] if last is not None else (turn.outcome if turn else "", None)
    again = next((each for each in commit if isinstance(each, f.TaskRetryScheduled)), None)
    error = _cause(commit)
    epoch = one.event.epoch if turn is None else turn.epoch
    reason = getattr(last, "reason", None) if last is not None else _why_not_final(commit)
    return {
        "event_id": one.event.event_id,
        "task_id": task.id,
        "agent_id": task.agent,
        "agent_key": task.agent_key,
        "agent_turn_id": None if turn is None else turn.turn_id,
        "turn_epoch": epoch,
        "epoch": epoch,
        "status": status,
        "error": error.code if error else (turn.error if turn is not None and turn.error else reason),
        "reason": reason,
        "error_message": error.message[:LONGEST_MESSAGE] if error else None,
        "deliverable_card_id": getattr(last, "deliverable_card", None)
        or getattr(turn, "deliverable_card", None),
        "partial": any(getattr(each, "partial", False) for each in (last, turn)),
        "is_final": last is not None,
        "task_status": task_status,
        "retry_at": None if again is None else moment(again.run_at),
    }


def _state(
    one: Logged, task: Task, status: str, turn_id: str | None, epoch: int, **metadata: Any
) -> dict[str, Any]:
    return {
        "event_id": one.event.event_id,
        "task_id": task.id,
        "agent_id": task.agent,
        "agent_key": task.agent_key,
        "agent_turn_id": turn_id,
        "status": status,
        "turn_epoch": epoch,
        "epoch": epoch,
        "updated_at": moment(one.event.at),
        "error": metadata.get("error"),
        "metadata": {name: value for name, value in metadata.items() if value is not None},
    }


def _dispatched(task: Task, one: Logged, fact: f.TaskDispatched, turn: str | None) -> Said:
    return "state", _state(one, task, "dispatched", fact.turn_id, fact.epoch)


def _claimed(task: Task, one: Logged, fact: f.TaskClaimed, turn: str | None) -> Said:
    about = {"activity": "thinking", "attempt_id": fact.attempt_id, "worker_id": fact.session_id}
    return "state", _state(one, task, "running", turn, one.event.epoch, **about)


def _suspended(task: Task, one: Logged, fact: f.TaskSuspended, turn: str | None) -> Said:
    waiting = {"activity": "awaiting_tool_result", "waiting_tool_count": fact.wait_count}
    return "state", _state(one, task, "suspended", turn, one.event.epoch, **waiting)


def _blocked(task: Task, one: Logged, fact: f.TaskBlocked, turn: str | None) -> Said:
    """A turn that has not ended waits for a person, or for the end of a cooldown."""
    activity = "cooling_down" if fact.recover_at is not None else "awaiting_person"
    about = {"activity": activity, "reason": fact.reason, "owner": fact.owner, "error": fact.reason}
    return "state", _state(one, task, "suspended", turn, one.event.epoch, **about)


def _offered_again(reason: str) -> Callable[..., Said]:
    """The turn goes on in other hands: as far as others are concerned, it is dispatched."""

    def say(task: Task, one: Logged, fact: f.Fact, turn: str | None) -> Said:
        return "state", _state(one, task, "dispatched", turn, one.event.epoch, reason=reason)

    return say


def _step(
    task: Task, one: Logged, turn: str | None, step: str, phase: str, cards: list[str], **metadata: Any
) -> Said:
    return "step", {
        "event_id": one.event.event_id,
        "task_id": task.id,
        "agent_id": task.agent,
        "agent_turn_id": turn,
        "turn_epoch": one.event.epoch,
        "step_id": step,
        "phase": phase,
        "metadata": {name: value for name, value in metadata.items() if value is not None},
        "new_card_ids": cards,
    }


def _step_started(task: Task, one: Logged, fact: f.StepStarted, turn: str | None) -> Said:
    return _step(task, one, turn, fact.step, "started", [])


def _effect_intended(task: Task, one: Logged, fact: f.EffectIntended, turn: str | None) -> Said:
    return _step(task, one, turn, fact.step, "executing", [], key=fact.key)


def _step_recorded(task: Task, one: Logged, fact: f.StepRecorded, turn: str | None) -> Said:
    phase = "completed" if is_completed(fact.result_type) else "failed"
    cards = [fact.card] if fact.card else []
    about = {
        "events": names_of(fact.result_type),
        "result_type": fact.result_type,
        "duration_ms": fact.took // 1000,
        "error": fact.error.code if fact.error else None,
    }
    return _step(task, one, turn, fact.step, phase, cards, **about)


def _reaped(task: Task, one: Logged, fact: f.TaskReaped, commit: list[f.Fact], turn: str | None) -> Said:
    """A turn that was ended by force leaves a step of its own in the audit."""
    step, error = f"step_reap_{(turn or task.id)[-8:]}", _cause(commit)
    return _step(task, one, turn, step, "failed", [], error=error.code if error else fact.reason)


def _why_not_final(commit: list[f.Fact]) -> str | None:
    """Why the turn ended and its task did not: another turn is scheduled, or a person must act."""
    found = (each.reason for each in commit if isinstance(each, f.TaskRetryScheduled | f.TaskBlocked))
    return next(found, None)


def _cause(commit: list[f.Fact]) -> ErrorInfo | None:
    """Why the turn ended: what made it fail, not that it was the last one."""
    carriers = (f.Ending, f.TaskRetryScheduled, f.TaskBlocked)
    return next((each.error for each in commit if isinstance(each, carriers) and each.error), None)


_SAYS: Final[dict[type[f.Fact], Callable[..., Said]]] = {
    f.TaskDispatched: _dispatched,
    f.TaskClaimed: _claimed,
    f.TaskSuspended: _suspended,
    f.TaskBlocked: _blocked,
    f.TaskResumed: _offered_again("resumed"),
    f.TaskReclaimed: _offered_again("reclaimed"),
    f.TaskHandedBack: _offered_again("handed_back"),
    f.StepStarted: _step_started,
    f.EffectIntended: _effect_intended,
    f.StepRecorded: _step_recorded,
}


def _outgoing(task: Task, one: Logged, suffix: str, data: dict[str, Any]) -> Outgoing:
    place = subject(task.namespace, task.channel, "evt", task.agent, suffix)
    message_id = f"{one.event.event_id}.{suffix}"
    envelope = {
        "specversion": "1.0",
        "id": message_id,
        "source": f"/endwell/{task.namespace}",
        "type": f"{VERSION}.evt.agent.{suffix}",
        "subject": place,
        "time": moment(one.event.at),
        "datacontenttype": "application/json",
    }
    if task.trace:
        envelope["traceparent"] = task.trace
    return Outgoing(place, message_id, _encoder.encode({**envelope, "data": data}))
