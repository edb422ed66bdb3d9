"""The shapes that outside programs rely on: a task, an event, why, bounds. Times are RFC 3339 in UTC."""

from __future__ import annotations

from typing import Any

import msgspec

from endwell.model import content
from endwell.model.moments import moment
from endwell.model.task import Task, error_of
from endwell.store.log import Event, Logged


def task_shape(task: Task, payload: bytes | None = None, deliverable: Any = None) -> dict[str, Any]:
    """A task as it is shown; payload and result only when their cards were read."""
    error = error_of(task)
    return {
        "id": task.id,
        "namespace": task.namespace,
        "agent": task.agent,
        "agent_key": task.agent_key,
        "idempotency_key": task.idempotency_key,
        "channel": task.channel,
        "priority": task.priority,
        "status": task.status,
        "reason": task.reason,
        "owner": task.owner,
        "payload": None if payload is None else content.decode_stored(payload),
        "result": deliverable if task.status == "succeeded" else None,
        "error": error and {"type": "", "message": "", "retryable": True, **msgspec.to_builtins(error)},
        "deliverable_card_id": task.deliverable_card,
        "dead_letter": task.dead_letter,
        "attempt_id": task.attempt_id,
        "worker_id": task.session_id,
        "turn_id": task.turn_id,
        "epoch": task.epoch,
        "version": task.version,
        "retry_count": task.retry_count,
        "dispatch_count": task.dispatch_count,
        "crash_count": task.crash_count,
        "clock_at": moment(task.clock_at),
        "clock_rule": task.clock_rule,
        "ends_by": moment(task.ends_by),
        "run_at": moment(task.run_at),
        "created_at": moment(task.created_at),
        "started_at": moment(task.started_at),
        "ended_at": moment(task.ended_at),
        "parent_id": task.parent_id,
        "replay_of": task.replay_of,
        "superseded_by": task.superseded_by,
    }


def event_shape(event: Event, prev_hash: bytes, seq: int | None = None) -> dict[str, Any]:
    """An event as it is shown."""
    return {
        "seq": seq,
        "event_id": event.event_id,
        "namespace": event.namespace,
        "task_id": event.task_id,
        "version": event.version,
        "type": event.type,
        "actor": event.actor,
        "at": moment(event.at),
        "attempt_id": event.attempt_id,
        "epoch": event.epoch,
        "command_id": event.command_id,
        "data": msgspec.json.decode(event.data),
        "prev_hash": prev_hash.hex(),
        "hash": event.hash.hex(),
    }


def logged_shape(logged: Logged) -> dict[str, Any]:
    """The same for an event of the whole log."""
    return event_shape(logged.event, logged.prev_hash, logged.seq)
