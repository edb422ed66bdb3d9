"""Two packed columns of a task, mostly empty: the work inside its turns, and its family."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from endwell.model.approval import OpenApproval
from endwell.model.task import Task

OnParentEnd = Literal["cancel", "leave"]
MAX_DEPTH = 20
"""A call this many levels below the first task is refused."""


class Inside(msgspec.Struct, frozen=True, omit_defaults=True):
    """Recorded work of the task's turns.

    `version` is that of the agent whose attempt recorded the first step. `doing` are the long steps that the
    attempt has begun, and until when each may keep the turn silent. `nudges` counts the nudges sent.
    `is_offered`: the turn is, or was, in the inbox. `held_for` is the effect that a person's hold protects,
    `accepted_by` the person who accepted the hold: only these two stop `ends_by`.
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
    """Where a task comes from: the call of its parent, its ancestors' keys, the task it replays.

    `chain` counts the deliveries of the tasks that led to this one by submitting another without waiting for
    it: the runaway guard continues from there. `origin_at` is when the first task of all that led to this one
    was submitted: a parent, a replayed task, or a task that submitted it.
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
    """Unpack the work inside the task's turns."""
    return _inside_decoder.decode(task.inside) if task.inside else _NOTHING_INSIDE


def effect_it_is_held_for(packed: str | None) -> str:
    """`held_for` of the packed column; empty if it cannot be decoded, which commands to the task report."""
    try:
        return _inside_decoder.decode(packed).held_for if packed else ""
    except msgspec.DecodeError:
        return ""


def changed_inside(task: Task, **changes: Any) -> str | None:
    """The packed column with these changes; None when everything in it is a default."""
    return packed_inside(replace(inside_of(task), **changes))


def packed_inside(inside: Inside) -> str | None:
    """Pack as one column's text."""
    return None if inside == _NOTHING_INSIDE else _encoder.encode(inside).decode()


def family_of(task: Task) -> Family:
    """Unpack the task's family."""
    return _family_decoder.decode(task.family) if task.family else _NO_FAMILY


def packed_family(family: Family) -> str | None:
    """Pack as one column's text."""
    return None if family == _NO_FAMILY else _encoder.encode(family).decode()


def origin_at(task: Task) -> int:
    """When the first task that led to this one was submitted, as in `Family`."""
    return family_of(task).origin_at or task.created_at


def deliveries_along(task: Task) -> int:
    """Deliveries of this task and of the chain of tasks that led to it."""
    return task.dispatch_count + (family_of(task).chain if task.family else 0)


def lineage_of(task: Task) -> str:
    """The first task of a chain of replays; they share their effects."""
    return family_of(task).lineage or task.id
