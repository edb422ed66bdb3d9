"""Makes the submissions of callers and turns, with every check that belongs before the store."""

from __future__ import annotations

from datetime import timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, TypeGuard

import msgspec
from msgspec.structs import replace

from endwell.errors import BadInput, UnknownAgent
from endwell.model import content, names, schema_check
from endwell.model.card import child_id
from endwell.model.commands import AgentSpec, Submit
from endwell.model.inside import MAX_DEPTH, OnParentEnd, deliveries_along, family_of, origin_at
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.policy.approval import Guard, guard_for, options_of
from endwell.settings import ApprovalSettings as ApprovalSettings

LONGEST_SECONDS = 10 * 366 * 86_400.0
"""Ten years: a longer delay or deadline is a mistake."""
SHORTEST_DEADLINE_SECONDS = 0.001
PRIORITIES = range(-9, 10)
MOST_NAMED = 10
"""At most this many agents are named to a caller who asked for an unknown one."""

Seconds = float | int | timedelta


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a submission, as the caller gives them. `agent` may be `name/key`."""

    agent: str
    priority: int = 0
    delay: Seconds | None = None
    deadline: Seconds | None = None
    channel: str = "main"
    cause: Cause | None = None


class Cause(msgspec.Struct, frozen=True):
    """The task that causes a submission, and the deliveries along its chain so far."""

    task_id: str
    chain: int
    origin_at: int

    @classmethod
    def of(cls, task: Task) -> Cause:
        """The cause that this task is."""
        return cls(task.id, deliveries_along(task), origin_at(task))


def order_for(
    request: Request, spec: AgentSpec, *, namespace: str, owner: str, approval: ApprovalSettings
) -> Submit:
    """The submission without its payload and ids, which `fill_order` adds."""
    _, agent_key = names.agent_reference(request.agent)
    deadline = microseconds(request.deadline, "deadline", least=SHORTEST_DEADLINE_SECONDS)
    order = Submit(
        command_id="",
        namespace=namespace,
        actor=owner,
        task_id="",
        agent=spec.name,
        agent_key=agent_key,
        payload=b"",
        payload_hash="",
        channel=names.channel_name(request.channel),
        agent_version=spec.version,
        priority=_checked_priority(request.priority),
        retry_policy=spec.retry_policy,
        delay=microseconds(request.delay, "delay", least=0.0) or 0,
        deadline=deadline if deadline is not None else spec.deadline,
        owner=owner,
        parent_id=request.cause.task_id if request.cause else None,
        on_parent_end="leave" if request.cause else "cancel",
        chain=request.cause.chain if request.cause else 0,
        origin_at=request.cause.origin_at if request.cause else None,
    )
    return _with_approval(order, guard_for(options_of(spec.options), approval))


def _with_approval(order: Submit, guard: Guard | None) -> Submit:
    """Add the approval rule, if there is one."""
    if guard is None:
        return order
    return replace(
        order,
        approval_within=int((guard.within_seconds or 0) * SECOND),
        approval_by=guard.by,
        approval_quorum=guard.quorum,
    )


class ChildCall(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn calls another agent, or a tool's worker."""

    tool_call_id: str
    agent_key: str | None
    within: int
    on_parent_end: OnParentEnd = "cancel"


def child_order(parent: Task, call: ChildCall, spec: AgentSpec, payload: Any, guard: Guard | None) -> Submit:
    """The submission of a call. The child ends when its parent must, or when the call's time is up."""
    family = family_of(parent)
    held = family.held_keys
    if parent.agent_key is not None:
        held = (*held, f"{parent.agent}/{parent.agent_key}")
    _refuse_endless(family.depth + 1, f"{spec.name}/{call.agent_key}", held)
    encoded = checked_payload(payload, spec)
    task_id = child_id(call.tool_call_id)
    order = Submit(
        command_id=task_id,
        namespace=parent.namespace,
        actor=parent.agent,
        causation_id=parent.turn_id,
        task_id=task_id,
        agent=spec.name,
        agent_key=call.agent_key,
        payload=encoded,
        payload_hash=content.fingerprint(encoded),
        channel=parent.channel,
        fair_key=parent.fair_key,
        agent_version=spec.version,
        trace=parent.trace,
        parent_id=parent.id,
        priority=parent.priority,
        retry_policy=spec.retry_policy,
        deadline=min(call.within, call.within if spec.deadline is None else spec.deadline),
        ends_before=parent.ends_by,
        owner=parent.owner,
        parent_agent=parent.agent,
        parent_call=call.tool_call_id,
        depth=family.depth + 1,
        held_keys=held,
        on_parent_end=call.on_parent_end,
        chain=family.chain,
        origin_at=origin_at(parent),
    )
    return _with_approval(order, guard)


def _refuse_endless(depth: int, reference: str, held: tuple[str, ...]) -> None:
    """Refuse what the machine would refuse too; raised here, the agent's code sees the error."""
    if depth > MAX_DEPTH:
        why = f"a chain of calls may be {MAX_DEPTH} deep"
        raise BadInput(why, code="calls_too_deep", hint="do some of the work without calling on")
    if reference in held:
        why = f"{reference} is held by a task that waits for this call: it would never start"
        raise BadInput(why, code="key_held_by_ancestor", hint="call another key")


def fill_order(order: Submit, spec: AgentSpec, payload: Any, key: str | None, task_id: str) -> Submit:
    """Add payload and ids. A new task's id is unique, and is its first command's id too."""
    encoded = checked_payload(payload, spec)
    return replace(
        order,
        command_id=task_id,
        task_id=task_id,
        payload=encoded,
        payload_hash=content.fingerprint(encoded),
        key=None if key is None else names.idempotency_key(key),
    )


def checked_payload(payload: Any, spec: AgentSpec) -> bytes:
    """The payload as canonical bytes; refused if it is not JSON or does not fit the agent's schema."""
    encoded = content.encode(payload)
    if spec.payload_schema is not None:
        schema_check.check(content.decode_stored(encoded), _decoded_schema(spec.payload_schema), "payload")
    return encoded


@lru_cache(maxsize=256)
def _decoded_schema(text: str) -> dict[str, Any]:
    schema: dict[str, Any] = msgspec.json.decode(text)
    return schema


def unknown_agent(name: str, known: list[str]) -> UnknownAgent:
    """The error for an agent that is not registered; it names the known agents, similar names first."""
    alike = get_close_matches(name, known)
    named = [*alike, *(each for each in known if each not in alike)]
    more = [f"and {len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
    some = ", ".join([*named[:MOST_NAMED], *more]) or "none yet"
    return UnknownAgent(
        f"no worker has registered an agent named {name!r}",
        hint=f"known agents: {some}; start a worker that serves it first",
        field="agent",
    )


def _checked_priority(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value not in PRIORITIES:
        raise BadInput(
            f"priority must be a whole number from {PRIORITIES[0]} to {PRIORITIES[-1]}, "
            f"not {content.safe_repr(value, 60)}",
            code="bad_priority",
            hint="higher runs sooner; 0 is usual",
            field="priority",
        )
    return value


def microseconds(value: object, field: str, *, least: float) -> int | None:
    """A delay or deadline in microseconds; refused outside its bounds."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not _is_number(seconds) or not least <= seconds <= LONGEST_SECONDS:  # NaN is not, either
        raise BadInput(
            f"{field} must be seconds between {least:g} and {LONGEST_SECONDS:.0f}, "
            f"not {content.safe_repr(value, 60)}",
            code=f"bad_{field}",
            hint="give seconds as a number, or a timedelta",
            field=field,
        )
    return int(seconds * SECOND)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
