"""Submitting tasks, and closing dead letters: by a replay, which submits the work again, or for good."""

from __future__ import annotations

from typing import Final

from msgspec.structs import astuple

from endwell import errors as e
from endwell.machine.approvals import previous_approval, request_before_start
from endwell.machine.decision import NOTHING, Decision, Evidence, refuse, refuse_status
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.card import Card, instruction_id
from endwell.model.inside import MAX_DEPTH, Family, family_of, lineage_of, origin_at, packed_family
from endwell.model.task import Task
from endwell.policy.guard import is_runaway
from endwell.policy.limits import Limits

_NO_FAMILY: Final = astuple(Family())


def submit(task: Task | None, command: c.Submit, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Create the task; if it exists, the same submission again changes nothing."""
    if task is not None:
        return _submit_again(task, command)
    refused = _refuse_call(command)
    if refused is not None:
        return refused
    card = Card(
        command.namespace,
        instruction_id(command.task_id),
        command.task_id,
        "task.instruction",
        command.payload,
        command.payload_hash,
        now,
    )
    created = _creation_fact(command, card, now, limits)
    asked = request_before_start(command, created, now, limits, seen.rules)
    return Decision(facts=(created, *asked), cards=(card,))


def _creation_fact(command: c.Submit, card: Card, now: int, limits: Limits) -> f.TaskCreated:
    run_at = now + command.delay
    ends_by = run_at + (command.deadline if command.deadline is not None else limits.deadline)
    return f.TaskCreated(
        command.agent,
        card.id,
        card.hash,
        run_at,
        ends_by if command.ends_before is None else min(ends_by, command.ends_before),
        command.owner,
        agent_key=command.agent_key,
        key=command.key,
        channel=command.channel,
        fair_key=command.fair_key,
        agent_version=command.agent_version,
        trace=command.trace,
        parent_id=command.parent_id,
        replay_of=command.replay_of,
        priority=command.priority,
        retry_policy=command.retry_policy,
        family=_packed_family_of(command),
        guard_at=now if command.chain and is_runaway(command.chain + 1, limits.runaway_limit) else None,
    )


def _packed_family_of(command: c.Submit) -> str | None:
    """The packed family; most tasks have none, which is found out before one is made."""
    parts = (
        command.parent_agent,
        command.parent_call,
        command.depth,
        command.held_keys,
        command.on_parent_end,
        command.lineage,
        command.chain,
        command.origin_at,
    )
    return None if parts == _NO_FAMILY else packed_family(Family(*parts))


def _refuse_call(command: c.Submit) -> Decision | None:
    """Refuse a call that is too deep in its chain, or whose key an ancestor holds: it would never start."""
    if command.depth > MAX_DEPTH:
        why = f"a chain of calls may be {MAX_DEPTH} deep"
        return refuse(e.BadInput(why, code="calls_too_deep", hint="do some of the work without calling on"))
    if command.agent_key is None:
        return None
    reference = f"{command.agent}/{command.agent_key}"
    if reference in command.held_keys:
        why = f"{reference} is held by a task that waits for this call: it would never start"
        return refuse(e.BadInput(why, code="key_held_by_ancestor", hint="call another key"))
    return None


def _submit_again(task: Task, command: c.Submit) -> Decision:
    """A turn that runs again finds the child of its call, even if it would ask for something else now."""
    if command.parent_call is not None and family_of(task).parent_call == command.parent_call:
        return NOTHING
    asked = (command.agent, command.agent_key, command.payload_hash)
    if asked == (task.agent, task.agent_key, task.payload_hash):
        return NOTHING
    key = command.key or command.task_id
    return refuse(
        e.IdempotencyConflict(
            f"key {key!r} already belongs to task {task.id} with another agent or payload",
            hint="use another key, or submit exactly what was submitted before",
            field="key",
            task_id=task.id,
        )
    )


def replay(task: Task, command: c.Replay, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Close the dead letter, and submit its work again as a new task."""
    if task.status == s.SUCCEEDED:
        why = f"task {task.id} succeeded; there is nothing to try again"
        return refuse_status(task, why, code="already_succeeded")
    if task.superseded_by is not None or task.dead_letter == "abandoned":
        state = (task.superseded_by and f"replayed as {task.superseded_by}") or "abandoned"
        return refuse_status(task, f"task {task.id} was already {state}", code="dead_letter_closed")
    new = c.Resubmit(
        command_id=f"{command.command_id}.new",
        namespace=task.namespace,
        actor=command.actor,
        causation_id=command.command_id,
        task_id=command.new_task_id,
        agent=task.agent,
        payload=command.payload,
        payload_hash=command.payload_hash,
        agent_key=task.agent_key,
        channel=task.channel,
        fair_key=task.fair_key,
        agent_version=task.agent_version,
        trace=task.trace,
        replay_of=task.id,
        lineage=lineage_of(task),
        priority=task.priority,
        retry_policy=task.retry_policy,
        deadline=command.deadline,
        owner=task.owner,
        chain=family_of(task).chain,
        origin_at=origin_at(task),
        **previous_approval(task, seen),
    )
    replayed = f.DeadLetterReplayed(superseded_by=command.new_task_id, by=command.actor)
    return Decision(facts=(replayed,), spawn=new)


def abandon(task: Task, command: c.Abandon, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Close the dead letter for good."""
    if task.dead_letter != "open":
        return refuse_status(task, f"task {task.id} is not an open dead letter", code="dead_letter_closed")
    return Decision(facts=(f.DeadLetterAbandoned(by=command.actor, note=command.note),))
