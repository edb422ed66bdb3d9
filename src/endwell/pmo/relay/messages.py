"""Translate events of the log to messages `evt.agent.<agent>.state`, `.task` and `.step`. Pure.

Each message is a CloudEvent in structured JSON. Its id is derived from the event's id, so it is the same
however often it is sent, and a receiver can recognise repetitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec

from endwell.doorbell.subjects import VERSION, agent_subject
from endwell.model import facts as f
from endwell.model.facts import is_completed, outside_names
from endwell.model.moments import moment
from endwell.model.task import ErrorInfo, Task
from endwell.store.log import Event, Logged

SUFFIXES: Final = ("state", "task", "step")
LONGEST_MESSAGE: Final = 500
"""Characters of an error's text that are published."""

_ENDINGS: Final[dict[type[f.Fact], tuple[str, str]]] = {
    f.SucceededEnding: ("success", "succeeded"),
    f.FailedEnding: ("failed", "failed"),
    f.TimedOutEnding: ("timeout", "timeout"),
    f.CancelledEnding: ("canceled", "cancelled"),
}
"""The name of each ending in messages, and the status of the task."""
_encoder = msgspec.json.Encoder()

Turns = MutableMapping[str, str | None]
"""The turn of each task as of the last event that was read."""
Part = tuple[str, dict[str, Any]]
"""A suffix and the data of a message."""


class Outgoing(msgspec.Struct, frozen=True):
    """One message: its subject, its id, and the CloudEvent as it is sent."""

    subject: str
    id: str
    body: bytes

    @property
    def event_id(self) -> str:
        """The event behind the message; one event may give several messages."""
        return self.id.rpartition(".")[0]


class _Scene(NamedTuple):
    """What a message is made from, beside its fact: the task, the event, all facts of its commit."""

    task: Task
    event: Event
    commit: list[f.Fact]
    turn: str | None

    def first_fact(self, *kinds: type[f.Fact]) -> Any:
        return next((fact for fact in self.commit if isinstance(fact, kinds)), None)

    def common_fields(self, turn: str | None, epoch: int) -> dict[str, Any]:
        """Fields of every message."""
        return {
            "event_id": self.event.event_id,
            "task_id": self.task.id,
            "agent_id": self.task.agent,
            "agent_turn_id": turn,
            "turn_epoch": epoch,
        }


def messages_of(
    page: Sequence[Logged], tasks: Mapping[str, Task], turns: Turns, suffixes: Sequence[str] = SUFFIXES
) -> Iterator[Outgoing]:
    """The messages of these events, in their order. The events of one commit must be together."""
    for _, run in groupby(page, key=lambda one: (one.event.task_id, one.event.command_id)):
        events = [one.event for one in run]
        task = tasks.get(events[0].task_id)
        if task is None:
            continue  # its row is gone; `events verify` reports that
        facts = [event.fact for event in events]
        for event, fact in zip(events, facts, strict=True):
            _follow_turn(turns, task, fact)
            for suffix, data in _parts_of(_Scene(task, event, facts, turns.get(task.id)), fact):
                if suffix in suffixes:
                    yield _make_outgoing(task, event, suffix, data)


def _follow_turn(turns: Turns, task: Task, fact: f.Fact) -> None:
    if isinstance(fact, f.TaskDispatched | f.TurnEnded):
        turns[task.id] = fact.turn_id
    elif isinstance(fact, f.TaskCreated):
        turns[task.id] = None


def turn_after(facts: Iterable[f.Fact]) -> str | None:
    """The last turn of a task after these facts."""
    turn = None
    for fact in facts:
        turn = fact.turn_id if isinstance(fact, f.TaskDispatched) else turn
    return turn


def _parts_of(scene: _Scene, fact: f.Fact) -> list[Part]:
    if isinstance(fact, f.TurnEnded):
        return _turn_ended(scene, fact)
    if isinstance(fact, (*_ENDINGS, f.TaskBlocked)) and scene.first_fact(f.TurnEnded):
        return []  # the turn's end has published it
    if type(fact) in _ENDINGS:
        return [("task", _ended_data(scene, fact, None))]
    part = _PARTS.get(type(fact))
    return [] if part is None else [part(scene, fact)]


def _turn_ended(scene: _Scene, fact: f.TurnEnded) -> list[Part]:
    """The agent is idle again; then comes the one `task` message of the turn."""
    ended = _ended_data(scene, scene.first_fact(*_ENDINGS), fact)
    state = _state_part(scene, "idle", {"error": ended["error"]}, fact.epoch)
    return [state, ("task", ended)]


def _ended_data(scene: _Scene, last: f.Fact | None, turn: f.TurnEnded | None) -> dict[str, Any]:
    """The end of a turn, of a task (`last`), or of both."""
    status, task_status = (turn.outcome if turn else "", None) if last is None else _ENDINGS[type(last)]
    again = scene.first_fact(f.TaskRetryScheduled)
    error = _cause_of(scene.commit)
    epoch = scene.event.epoch if turn is None else turn.epoch
    reason = _why_not_final(scene) if last is None else getattr(last, "reason", None)
    return {
        **scene.common_fields(None if turn is None else turn.turn_id, epoch),
        "agent_key": scene.task.agent_key,
        "epoch": epoch,
        "status": status,
        "error": error.code if error else (turn.error if turn is not None and turn.error else reason),
        "reason": reason,
        "error_message": error.message[:LONGEST_MESSAGE] if error else None,
        "deliverable_card_id": getattr(last, "deliverable_card", None)
        or getattr(turn, "deliverable_card", None),
        "partial": any(getattr(fact, "partial", False) for fact in (last, turn)),
        "is_final": last is not None,
        "task_status": task_status,
        "retry_at": None if again is None else moment(again.run_at),
    }


def _state_part(scene: _Scene, status: str, metadata: dict[str, Any], epoch: int | None = None) -> Part:
    epoch = scene.event.epoch if epoch is None else epoch
    return "state", {
        **scene.common_fields(scene.turn, epoch),
        "agent_key": scene.task.agent_key,
        "status": status,
        "epoch": epoch,
        "updated_at": moment(scene.event.at),
        "error": metadata.get("error"),
        "metadata": _given_values(metadata),
    }


def _step_part(scene: _Scene, step: str, phase: str, cards: Sequence[str] = (), **metadata: Any) -> Part:
    return "step", {
        **scene.common_fields(scene.turn, scene.event.epoch),
        "step_id": step,
        "phase": phase,
        "metadata": _given_values(metadata),
        "new_card_ids": list(cards),
    }


def _given_values(metadata: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if value is not None}


def _dispatched_part(scene: _Scene, fact: f.TaskDispatched) -> Part:
    return _state_part(scene, "dispatched", {}, fact.epoch)


def _claimed_part(scene: _Scene, fact: f.TaskClaimed) -> Part:
    about = {"activity": "thinking", "attempt_id": fact.attempt_id, "worker_id": fact.session_id}
    return _state_part(scene, "running", about)


def _suspended_part(scene: _Scene, fact: f.TaskSuspended) -> Part:
    about = {"activity": "awaiting_tool_result", "waiting_tool_count": fact.wait_count}
    return _state_part(scene, "suspended", about)


def _blocked_part(scene: _Scene, fact: f.TaskBlocked) -> Part:
    """A turn that has not ended waits for a person, or for the end of a cooldown."""
    activity = "cooling_down" if fact.recover_at is not None else "awaiting_person"
    about = {"activity": activity, "reason": fact.reason, "owner": fact.owner, "error": fact.reason}
    return _state_part(scene, "suspended", about)


def _offered_again(reason: str) -> Callable[[_Scene, f.Fact], Part]:
    """The turn waits for another worker: seen from outside it is dispatched."""
    return lambda scene, fact: _state_part(scene, "dispatched", {"reason": reason})


def _step_started(scene: _Scene, fact: f.StepStarted) -> Part:
    return _step_part(scene, fact.step, "started")


def _effect_intended(scene: _Scene, fact: f.EffectIntended) -> Part:
    return _step_part(scene, fact.step, "executing", key=fact.key)


def _step_recorded(scene: _Scene, fact: f.StepRecorded) -> Part:
    return _step_part(
        scene,
        fact.step,
        "completed" if is_completed(fact.result_type) else "failed",
        [fact.card] if fact.card else [],
        events=outside_names(fact.result_type),
        result_type=fact.result_type,
        duration_ms=fact.took // 1000,
        error=fact.error.code if fact.error else None,
    )


def _reaped_part(scene: _Scene, fact: f.TaskReaped) -> Part:
    """A turn that was ended by force leaves a step of its own in the audit."""
    step, error = f"step_reap_{(scene.turn or scene.task.id)[-8:]}", _cause_of(scene.commit)
    return _step_part(scene, step, "failed", error=error.code if error else fact.reason)


def _why_not_final(scene: _Scene) -> str | None:
    """Why the turn ended and its task did not: a retry is scheduled, or a person must act."""
    found = scene.first_fact(f.TaskRetryScheduled, f.TaskBlocked)
    return None if found is None else found.reason


def _cause_of(commit: list[f.Fact]) -> ErrorInfo | None:
    """Why the turn ended: the error that made it fail, not that it was the last turn."""
    carriers = (f.Ending, f.TaskRetryScheduled, f.TaskBlocked)
    return next((fact.error for fact in commit if isinstance(fact, carriers) and fact.error), None)


_PARTS: Final[dict[type[f.Fact], Callable[[_Scene, Any], Part]]] = {
    f.TaskDispatched: _dispatched_part,
    f.TaskClaimed: _claimed_part,
    f.TaskSuspended: _suspended_part,
    f.TaskBlocked: _blocked_part,
    f.TaskReaped: _reaped_part,
    f.TaskResumed: _offered_again("resumed"),
    f.TaskReclaimed: _offered_again("reclaimed"),
    f.TaskHandedBack: _offered_again("handed_back"),
    f.StepStarted: _step_started,
    f.EffectIntended: _effect_intended,
    f.StepRecorded: _step_recorded,
}


def _make_outgoing(task: Task, event: Event, suffix: str, data: dict[str, Any]) -> Outgoing:
    place = agent_subject(task.namespace, task.channel, "evt", task.agent, suffix)
    message_id = f"{event.event_id}.{suffix}"
    envelope = {
        "specversion": "1.0",
        "id": message_id,
        "source": f"/endwell/{task.namespace}",
        "type": f"{VERSION}.evt.agent.{suffix}",
        "subject": place,
        "time": moment(event.at),
        "datacontenttype": "application/json",
    }
    if task.trace:
        envelope["traceparent"] = task.trace
    return Outgoing(place, message_id, _encoder.encode({**envelope, "data": data}))
