"""Checks of the record: it is whole and conserved, and no task waits for a person."""

from __future__ import annotations

from endwell.model.moments import SECOND
from endwell.operate.doctor.finding import Finding, Patient, error_of, warn_of
from endwell.operate.record.verify import COUNT_DIFFERS, verify

MOST_LISTED = 20
SKIPPED_SECONDS = 86_400
"""How long a skipped message is reported: a person can only read it."""
MOST_COUNTED = 1000


async def check_hash_chains(patient: Patient) -> list[Finding]:
    """Every task's log is whole, and every row is what its log folds to."""
    answer = await verify(patient.store, patient.namespaces)
    kinds = {one["kind"] for one in answer["problems"]}
    if kinds <= {COUNT_DIFFERS}:  # `conservation` reports that in detail
        return []
    return [
        error_of(
            "record_broken",
            f"{answer['found']} problems in the logs of {answer['checked']} tasks",
            "`endwell events verify` lists them; restore a backup, and find out which program wrote to the "
            "store past Endwell",
            problems=answer["problems"][:MOST_LISTED],
        )
    ]


async def check_conservation(patient: Patient) -> list[Finding]:
    """Accepted = ended + live: the commits counted the tasks that there are."""
    found = []
    for namespace in patient.namespaces:
        counted = await patient.store.count_conservation(namespace)
        if not counted.is_conserved:
            live = counted.tasks - counted.ended_tasks
            found.append(
                error_of(
                    "conservation_broken",
                    f"{counted.accepted} tasks were accepted and {counted.ended} ended, "
                    f"but the store has {counted.ended_tasks} ended and {live} live ones",
                    "tasks were removed or added past Endwell: run `endwell events verify`, restore a backup",
                    namespace=namespace,
                    accepted=counted.accepted,
                    ended=counted.ended,
                    tasks=counted.tasks,
                    ended_tasks=counted.ended_tasks,
                )
            )
    return found


async def check_for_people(patient: Patient) -> list[Finding]:
    """Dead letters, blocked tasks, unknown effects and skipped messages."""
    store, found = patient.store, []
    for namespace in patient.namespaces:
        letters = await store.dead_letters_page(namespace, status="open", limit=MOST_COUNTED)
        effects = await store.effects_page(namespace, status="unknown", limit=MOST_COUNTED)
        since = await store.now() - SKIPPED_SECONDS * SECOND
        counts = {
            "dead_letters_open": len(letters),
            "tasks_blocked": (await store.counts_by_status(namespace)).get("blocked", 0),
            "effects_unknown": len(effects),
            "messages_skipped": await store.skipped_count(namespace, since),
        }
        for code, count in counts.items():
            if count:
                one, many, remedy = _FOR_PEOPLE[code]
                message = many.format(count=count) if count > 1 else one
                found.append(warn_of(code, message, remedy, namespace=namespace, count=count))
    return found


_FOR_PEOPLE = {
    "dead_letters_open": (
        "1 dead letter is open",
        "{count} dead letters are open",
        "see them with endwell dlq list, then replay or abandon them",
    ),
    "tasks_blocked": (
        "1 task is blocked: it waits for a person or for the end of a cooldown",
        "{count} tasks are blocked: they wait for a person or for the end of a cooldown",
        "endwell task list --status blocked, then endwell why TASK",
    ),
    "effects_unknown": (
        "1 effect has an unknown outcome",
        "{count} effects have an unknown outcome",
        "endwell effect list --status unknown, then endwell effect settle",
    ),
    "messages_skipped": (
        "1 message could not be delivered in the last 24 hours",
        "{count} messages could not be delivered in the last 24 hours",
        "endwell inbox list --status skipped shows why in watchdog_error",
    ),
}
"""For each code: the message for one, the message for several, the remedy."""
