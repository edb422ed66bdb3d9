"""The streams that carry the turns: whether their server is fit for it, and whether they grow."""

from __future__ import annotations

from typing import Final

from endwell.operate.doctor.finding import Finding, Patient
from endwell.redis_client import RedisClient, Refusal, Unreachable
from endwell.settings import masked
from endwell.streams.commands import KEPT_LETTERS
from endwell.streams.orchestrator.free_slots import AHEAD_SLOTS
from endwell.streams.protocol import Names
from endwell.streams.server_check import (
    KEEPS_STREAMS,
    Condition,
    condition,
    eviction_policy,
    is_persistent,
)

SPARE: Final = 1000
"""So many entries more than needed may lie on a stream for a moment."""
MANY_LETTERS: Final = KEPT_LETTERS // 2


async def streams(patient: Patient) -> list[Finding]:
    """Where Redis carries the turns: it answers, keeps its streams, and they are no longer than needed."""
    settings = patient.settings
    if settings.queue.kind != "redis" or patient.connect_stream is None:
        return []
    connection = patient.connect_stream()
    try:
        found = await _server(connection)
        for namespace in patient.namespaces:
            found += await _of_namespace(patient, connection, namespace)
    except (Unreachable, Refusal) as error:
        return [_unreachable(settings.redis.url, error)]
    finally:
        await connection.close()
    return found


def _unreachable(url: str, error: Exception) -> Finding:
    return Finding(
        code="queue_unreachable",
        severity="error",
        message=f"no task stream at {masked(url)}: {error}",
        remedy="see whether the server runs; meanwhile workers ask the store itself, and foreign ones wait",
    )


async def _server(connection: RedisClient) -> list[Finding]:
    found = []
    policy = await eviction_policy(connection)
    if policy is not None and policy not in KEEPS_STREAMS:
        found.append(
            Finding(
                code="queue_may_evict",
                severity="warning",
                message=f"the server may drop streams when its memory is full (maxmemory-policy {policy})",
                remedy="set maxmemory-policy noeviction; nothing gets lost without it, but work is delayed",
                facts={"maxmemory-policy": policy},
            )
        )
    if await is_persistent(connection) is False:
        found.append(
            Finding(
                code="queue_forgets",
                severity="warning",
                message="the server keeps nothing over a restart (appendonly no, save '')",
                remedy="set appendonly yes: turns are put again from the store, unreadable entries are not",
            )
        )
    return found


async def _of_namespace(patient: Patient, connection: RedisClient, namespace: str) -> list[Finding]:
    queue = patient.settings.queue
    names = Names.of(patient.settings.redis.prefix, namespace)
    patience = 2 * queue.VISIBILITY_TIMEOUT_S + 2 * queue.RECLAIM_INTERVAL_S
    seen = await condition(connection, names, int(1000 * patience))
    needed = await _needed(patient, namespace)
    found = [*_missing(seen, needed, namespace), *_left_alone(seen, patience, namespace)]
    found += _growing(namespace, names.task, seen.lengths[names.task], needed)
    found += _growing(namespace, names.result, seen.lengths[names.result], 0)
    return found + _letters(seen, seen.lengths[names.dlq], namespace)


async def _needed(patient: Patient, namespace: str) -> int:
    """How many turns may be on the stream: those under way, and queued ones for which workers have room."""
    counts, now = await patient.store.counts(namespace), await patient.store.now()
    slots = sum(
        session.concurrency
        for session in await patient.store.open_sessions(namespace)
        if session.kind == "worker" and session.lease_until > now
    )
    announced = min(counts.get("queued", 0), (1 + AHEAD_SLOTS) * slots)
    return counts.get("dispatched", 0) + counts.get("running", 0) + announced


def _missing(seen: Condition, needed: int, namespace: str) -> list[Finding]:
    if seen.has_groups or not needed:
        return []
    return [
        Finding(
            code="queue_has_no_group",
            severity="warning",
            message="the stream of tasks has no group: the server has forgotten it, or nobody has made it",
            remedy="see whether a PMO with queue.kind = redis runs: it makes the group, puts turns again",
            namespace=namespace,
        )
    ]


def _left_alone(seen: Condition, patience: float, namespace: str) -> list[Finding]:
    if not seen.left_ms:
        return []
    oldest = max(seen.left_ms.values()) / 1000
    return [
        Finding(
            code="entries_left_alone",
            severity="error",
            message=f"pending entries were not touched for {oldest:.0f} s (expected within {patience:g} s)",
            remedy="the orchestrator is to take them back: see whether a PMO with queue.kind = redis runs",
            namespace=namespace,
            facts={"entries": dict(list(seen.left_ms.items())[:5]), "count": len(seen.left_ms)},
        )
    ]


def _growing(namespace: str, stream: str, length: int, needed: int) -> list[Finding]:
    if length <= needed + SPARE:
        return []
    return [
        Finding(
            code="stream_grows",
            severity="warning",
            message=f"{stream} has {length} entries, and {needed} are needed",
            remedy="a PMO with queue.kind = redis trims it: see whether one runs, and who else adds entries",
            namespace=namespace,
            facts={"stream": stream, "entries": length, "needed": needed},
        )
    ]


def _letters(seen: Condition, length: int, namespace: str) -> list[Finding]:
    found = []
    if seen.unreadable:
        found.append(
            Finding(
                code="entries_unreadable",
                severity="warning",
                message=f"{seen.unreadable} entries could not be read and await a verdict",
                remedy="endwell dlq list shows them and why; replay or abandon them",
                namespace=namespace,
                facts={"count": seen.unreadable},
            )
        )
    if length > MANY_LETTERS:
        found.append(
            Finding(
                code="dead_letters_pile_up",
                severity="warning",
                message=f"stream:dlq has {length} entries; beyond {KEPT_LETTERS} the oldest leave it",
                remedy="endwell dlq list, then replay or abandon them; the store keeps those of tasks",
                namespace=namespace,
                facts={"entries": length},
            )
        )
    return found
