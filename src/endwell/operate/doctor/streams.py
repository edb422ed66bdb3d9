"""Findings about the streams that carry the turns: is their server fit for it, and do they grow?"""

from __future__ import annotations

from typing import Any, Final

from endwell.operate.doctor.finding import Finding, Patient
from endwell.redis_client import RedisClient, Refusal, Unreachable
from endwell.settings import mask_url
from endwell.streams.dead_letter_stream import KEPT_LETTERS
from endwell.streams.orchestrator.free_slots import AHEAD_SLOTS
from endwell.streams.protocol import Names
from endwell.streams.task_streams import (
    KEEPS_STREAMS,
    StreamsCondition,
    TaskStreams,
    eviction_policy,
    is_persistent,
)

SPARE_ENTRIES: Final = 1000
"""How many entries more than needed may be on a stream for a moment."""
MANY_LETTERS: Final = KEPT_LETTERS // 2


async def find_stream_problems(patient: Patient) -> list[Finding]:
    """Findings where Redis carries the turns; none elsewhere."""
    settings = patient.settings
    if settings.queue.kind != "redis" or patient.connect_stream is None:
        return []
    redis = patient.connect_stream()
    try:
        found = await _about_server(redis)
        for namespace in patient.namespaces:
            found += await _about_namespace(patient, redis, namespace)
    except (Unreachable, Refusal) as error:
        message = f"no task stream at {mask_url(settings.redis.url)}: {error}"
        remedy = "see whether the server runs; until then workers ask the store itself, and foreign ones wait"
        return [Finding(code="queue_unreachable", severity="error", message=message, remedy=remedy)]
    finally:
        await redis.close()
    return found


async def _about_server(redis: RedisClient) -> list[Finding]:
    found = []
    policy = await eviction_policy(redis)
    if policy is not None and policy not in KEEPS_STREAMS:
        message = f"the server may drop streams when its memory is full (maxmemory-policy {policy})"
        remedy = "set maxmemory-policy noeviction; nothing is lost without it, but work is delayed"
        found.append(_warning("queue_may_evict", message, remedy, facts={"maxmemory-policy": policy}))
    if await is_persistent(redis) is False:
        message = "the server keeps nothing over a restart (appendonly no, save '')"
        remedy = "set appendonly yes: turns are published again, but unreadable entries are lost"
        found.append(_warning("queue_forgets", message, remedy))
    return found


async def _about_namespace(patient: Patient, redis: RedisClient, namespace: str) -> list[Finding]:
    queue = patient.settings.queue
    streams = TaskStreams(redis, Names.for_namespace(patient.settings.redis.prefix, namespace))
    patience = 2 * queue.VISIBILITY_TIMEOUT_S + 2 * queue.RECLAIM_INTERVAL_S
    condition = await streams.examine(int(1000 * patience))
    lengths, names = condition.lengths, streams.names
    needed = await _needed_entries(patient, namespace)
    found = [*_missing_group(condition, needed, namespace), *_left_alone(condition, patience, namespace)]
    found += _too_long(namespace, names.task, lengths[names.task], needed)
    found += _too_long(namespace, names.result, lengths[names.result], 0)
    return found + _dead_letters(condition, lengths[names.dlq], namespace)


async def _needed_entries(patient: Patient, namespace: str) -> int:
    """How many offers may be on the stream: claimed, dispatched, and published ones of queued tasks."""
    counts, now = await patient.store.counts_by_status(namespace), await patient.store.now()
    slots = sum(
        session.concurrency
        for session in await patient.store.open_sessions(namespace)
        if session.kind == "worker" and session.lease_until > now
    )
    published = min(counts.get("queued", 0), (1 + AHEAD_SLOTS) * slots)
    return counts.get("dispatched", 0) + counts.get("running", 0) + published


def _missing_group(condition: StreamsCondition, needed: int, namespace: str) -> list[Finding]:
    if condition.has_groups or not needed:
        return []
    message = "the stream of tasks has no group: the server has lost it, or no PMO has created it"
    remedy = "see whether a PMO with queue.kind = redis runs: it creates the group and publishes again"
    return [_warning("queue_has_no_group", message, remedy, namespace)]


def _left_alone(condition: StreamsCondition, patience: float, namespace: str) -> list[Finding]:
    if not condition.idle_ms:
        return []
    oldest = max(condition.idle_ms.values()) / 1000
    return [
        Finding(
            code="entries_left_alone",
            severity="error",
            message=f"pending entries were not touched for {oldest:.0f} s (expected within {patience:g} s)",
            remedy="the orchestrator should reclaim them: see whether a PMO with queue.kind = redis runs",
            namespace=namespace,
            facts={"entries": dict(list(condition.idle_ms.items())[:5]), "count": len(condition.idle_ms)},
        )
    ]


def _too_long(namespace: str, stream: str, length: int, needed: int) -> list[Finding]:
    if length <= needed + SPARE_ENTRIES:
        return []
    message = f"{stream} has {length} entries, and {needed} are needed"
    remedy = "a PMO with queue.kind = redis trims it: see whether one runs, and who else adds entries"
    facts = {"stream": stream, "entries": length, "needed": needed}
    return [_warning("stream_grows", message, remedy, namespace, facts)]


def _dead_letters(condition: StreamsCondition, length: int, namespace: str) -> list[Finding]:
    found = []
    if condition.unreadable:
        message = f"{condition.unreadable} entries could not be read and await a verdict"
        remedy = "endwell dlq list shows them and why; replay or abandon them"
        facts = {"count": condition.unreadable}
        found.append(_warning("entries_unreadable", message, remedy, namespace, facts))
    if length > MANY_LETTERS:
        message = f"stream:dlq has {length} entries; beyond {KEPT_LETTERS} the oldest leave it"
        remedy = "endwell dlq list, then replay or abandon them; the store keeps those of tasks"
        found.append(_warning("dead_letters_pile_up", message, remedy, namespace, {"entries": length}))
    return found


def _warning(
    code: str, message: str, remedy: str, namespace: str | None = None, facts: dict[str, Any] | None = None
) -> Finding:
    return Finding(
        code=code,
        severity="warning",
        message=message,
        remedy=remedy,
        namespace=namespace,
        facts=facts or {},
    )
