"""The record: whole, conserved, and what in it waits for a person."""

from __future__ import annotations

from endwell.operate.doctor.finding import Finding, Patient
from endwell.operate.verify import COUNT_DIFFERS, verify
from endwell.policy.limits import SECOND

MOST_LISTED = 20
SKIPPED_SECONDS = 86_400
"""For so long a message that nobody got is news: nothing can be done to it, it can only be read."""


async def hash_chains(patient: Patient) -> list[Finding]:
    """Every task's log is whole, and every row is what its log comes to."""
    answer = await verify(patient.store, patient.namespaces)
    kinds = {one["kind"] for one in answer["problems"]}
    if kinds <= {COUNT_DIFFERS}:  # `conservation` says more about it
        return []
    return [
        Finding(
            code="record_broken",
            severity="error",
            message=f"{answer['found']} problems in the logs of {answer['checked']} tasks",
            remedy="`endwell events verify` lists them; restore a backup, find out who wrote past Endwell",
            facts={"problems": answer["problems"][:MOST_LISTED]},
        )
    ]


async def conservation(patient: Patient) -> list[Finding]:
    """Accepted = ended + live: what the commits counted is what there is."""
    found = []
    for namespace in patient.namespaces:
        counted = await patient.store.conservation(namespace)
        if not counted.holds:
            live = counted.tasks - counted.ended_tasks
            found.append(
                Finding(
                    code="conservation_broken",
                    severity="error",
                    message=f"{counted.accepted} tasks were accepted and {counted.ended} ended, "
                    f"but there are {counted.ended_tasks} ended and {live} live ones",
                    remedy="tasks were lost or added past Endwell: `endwell events verify`, restore a backup",
                    namespace=namespace,
                    facts={
                        "accepted": counted.accepted,
                        "ended": counted.ended,
                        "tasks": counted.tasks,
                        "ended_tasks": counted.ended_tasks,
                    },
                )
            )
    return found


async def for_people(patient: Patient) -> list[Finding]:
    """Dead letters, blocked tasks, unknown effects, messages that nobody got."""
    found = []
    for namespace in patient.namespaces:
        found += [
            Finding(
                code=code,
                severity="warning",
                message=messages[count > 1].format(count=count),
                remedy=remedy,
                namespace=namespace,
                facts={"count": count},
            )
            for code, count, messages, remedy in await _waiting(patient, namespace)
            if count
        ]
    return found


async def _waiting(patient: Patient, namespace: str) -> list[tuple[str, int, tuple[str, str], str]]:
    """Each with its code, how many there are, what to say of one and of several, and the remedy."""
    store = patient.store
    counts = await store.counts(namespace)
    letters = await store.dead_letters_page(namespace, status="open", limit=1000)
    effects = await store.effects_page(namespace, status="unknown", limit=1000)
    skipped = await store.skipped_count(namespace, await store.now() - SKIPPED_SECONDS * SECOND)
    return [
        (
            "dead_letters_open",
            len(letters),
            ("1 dead letter awaits a verdict", "{count} dead letters await a verdict"),
            "endwell dlq list, then replay or abandon them",
        ),
        (
            "tasks_blocked",
            counts.get("blocked", 0),
            ("1 task is held by a person, or cools down", "{count} tasks are held by a person, or cool down"),
            "endwell task list --status blocked, then endwell why TASK",
        ),
        (
            "effects_unknown",
            len(effects),
            (
                "of 1 effect nobody knows whether it took place",
                "of {count} effects nobody knows whether they took place",
            ),
            "endwell effect list --status unknown, then endwell effect settle",
        ),
        (
            "messages_skipped",
            skipped,
            (
                "1 message could not be delivered in the last 24 hours",
                "{count} messages could not be delivered in the last 24 hours",
            ),
            "endwell inbox list --status skipped: watchdog_error says why",
        ),
    ]
