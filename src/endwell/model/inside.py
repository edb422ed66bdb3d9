"""What happened inside a task's turns, and whose child it is: two packed columns, mostly empty."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from endwell.model.task import Task

OnParentEnd = Literal["cancel", "leave"]
MAX_DEPTH = 20
"""A call this many levels below the first task is refused."""


class OpenApproval(msgspec.Struct, frozen=True, omit_defaults=True):
    """An open approval: who may decide, how many must agree, and what exactly they were shown."""

    id: str
    shown_hash: str
    by: tuple[str, ...] = ()
    quorum: int = 1
    votes: tuple[str, ...] = ()


class Inside(msgspec.Struct, frozen=True, omit_defaults=True):
    """Recorded work: which run its steps belong to, open intents, the draft, open approvals, children.

    `version` is that of the agent whose attempt recorded the first of the steps. `doing` are the long steps
    that the attempt has begun, and until when each may keep the turn silent. `nudges` is how often the agent
    was told that it goes round in circles; `is_offered` says that the turn lies, or lay, in the inbox;
    `held_for` is the effect for whose sake a person holds the task, `accepted_by` the person who accepted to
    hold it: only these two stop `ends_by`.
    """

    run: int = 1
    steps: int = 0
    intents: tuple[str, ...] = ()
    draft: str | None = None
    draft_hash: str | None = None
    asked: tuple[OpenApproval, ...] = ()
    children: int = 0
    version: str | None = None
    doing: tuple[tuple[str, int], ...] = ()
    nudges: int = 0
    is_offered: bool = False
    held_for: str = ""
    accepted_by: str = ""


class Family(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a task comes from: the call of its parent, the chain of ancestors, the task it replays.

    `chain` is how often the tasks were delivered that led to this one by submitting another without waiting
    for it: the runaway guard counts on from there. `origin_at` is when the first task was submitted that led
    to this one: a parent, a task that it replays, or one that submitted it.
    """

    parent_agent: str = ""
    parent_call: str | None = None
    depth: int = 0
    held_keys: tuple[str, ...] = ()
    on_parent_end: OnParentEnd = "cancel"
    lineage: str | None = None
    chain: int = 0
    origin_at: int | None = None


_NOTHING_INSIDE = Inside()
_NO_FAMILY = Family()
_inside_decoder = msgspec.json.Decoder(Inside)
_family_decoder = msgspec.json.Decoder(Family)
_encoder = msgspec.json.Encoder()


def inside_of(task: Task) -> Inside:
    """What happened inside its turns so far."""
    return _inside_decoder.decode(task.inside) if task.inside else _NOTHING_INSIDE


def effect_it_is_held_for(packed: str | None) -> str:
    """`held_for` of the packed column; nothing if that cannot be read: commands on the task say so."""
    try:
        return _inside_decoder.decode(packed).held_for if packed else ""
    except msgspec.DecodeError:
        return ""


def changed_inside(task: Task, **changes: Any) -> str | None:
    """The packed column with these changes; `None` when that leaves nothing to say."""
    return packed_inside(replace(inside_of(task), **changes))


def packed_inside(inside: Inside) -> str | None:
    """The same as one column's text."""
    return None if inside == _NOTHING_INSIDE else _encoder.encode(inside).decode()


def family_of(task: Task) -> Family:
    """Whose child it is."""
    return _family_decoder.decode(task.family) if task.family else _NO_FAMILY


def packed_family(family: Family) -> str | None:
    """The same as one column's text."""
    return None if family == _NO_FAMILY else _encoder.encode(family).decode()


def origin_at(task: Task) -> int:
    """When the first task was submitted that led to this one, as `Family` says."""
    return family_of(task).origin_at or task.created_at


def deliveries_along(task: Task) -> int:
    """How often this task, and the chain of tasks that led to it, were delivered."""
    return task.dispatch_count + (family_of(task).chain if task.family else 0)


def lineage_of(task: Task) -> str:
    """The first task of a chain of replays: effects are shared along it."""
    return family_of(task).lineage or task.id
