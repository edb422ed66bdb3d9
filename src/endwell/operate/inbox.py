"""The inbox for people: messages to agents, and what became of them."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from endwell.errors import NotFound
from endwell.model import content
from endwell.model.message import InboxRow
from endwell.model.moments import moment
from endwell.operate.pages import bad_cursor, page_of
from endwell.store.contract import Store


async def page(
    store: Store,
    namespace: str,
    *,
    status: str | None = None,
    agent: str | None = None,
    task_id: str | None = None,
    message_type: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Messages, newest first, without their content."""
    found = await store.inbox_page(
        namespace,
        status=status,
        agent=agent,
        task_id=task_id,
        message_type=message_type,
        before=_position_of(cursor),
        limit=limit + 1,
    )
    return page_of(found, limit, _shape, lambda row: f"{row.created_at}.{row.id}")


async def read_message(store: Store, namespace: str, message_id: str) -> dict[str, Any]:
    """One message with its content, where it names a card."""
    row = await store.inbox_row(namespace, message_id)
    card = None
    if row.card_id:
        with contextlib.suppress(NotFound):
            card = content.decode_stored((await store.card(namespace, row.card_id)).content)
    return {**_shape(row), "content": card}


def _position_of(cursor: str | None) -> tuple[int, str] | None:
    if cursor is None:
        return None
    at, _, message_id = cursor.partition(".")
    if not at.isdecimal() or not message_id:
        raise bad_cursor()
    return int(at), message_id


def _shape(row: InboxRow) -> dict[str, Any]:
    """The column names of the watchdog document, and ours beside them."""
    return {
        "inbox_id": row.id,
        "project_id": row.namespace,
        "agent_id": row.agent,
        "agent_key": row.agent_key,
        "message_type": row.message_type,
        "enqueue_mode": row.enqueue_mode,
        "correlation_id": row.correlation_id,
        "recursion_depth": row.recursion_depth,
        "traceparent": row.traceparent,
        "tracestate": row.tracestate,
        "trace_id": row.trace_id,
        "parent_step_id": row.parent_step_id,
        "source_agent_id": row.source_agent_id,
        "source_step_id": row.source_step_id,
        "channel_id": row.channel,
        "task_id": row.task_id,
        "agent_turn_id": row.turn_id,
        "turn_epoch": row.turn_epoch,
        "card_id": row.card_id,
        "payload": None if row.payload is None else msgspec.json.decode(row.payload),
        "status": row.status,
        "attempt_id": row.attempt_id,
        "retry_count": row.retry_count,
        "next_retry_at": moment(row.next_retry_at),
        "defer_reason": row.defer_reason,
        "last_error": row.last_error,
        "watchdog_error": row.watchdog_error,
        "watchdog_at": moment(row.watchdog_at),
        "created_at": moment(row.created_at),
        "processed_at": moment(row.processed_at),
        "archived_at": moment(row.archived_at),
    }
