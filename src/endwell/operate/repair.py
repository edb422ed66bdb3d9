"""Repair a payload: `customer.items[0].price=5` puts a value at a path."""

from __future__ import annotations

import copy
import re
from typing import Any

import msgspec

from endwell.errors import BadInput
from endwell.model import content

_STEP = re.compile(r"""\.?(?P<name>[^.\[\]"=]+)|\[(?P<index>\d{1,9})\]|\["(?P<quoted>[^"]*)"\]""")
_PATH = re.compile(r"""(?:[^="]|"[^"]*")*?(?==)""")


class Edit(msgspec.Struct, frozen=True):
    """One value for one path. Steps are names in objects and numbers in lists."""

    path: tuple[str | int, ...]
    value: Any


def edit_of(text: str) -> Edit:
    """Read `path=value`. The value is JSON; a bare word is taken as text."""
    found = _PATH.match(text)
    if found is None or not found[0].strip():
        raise _bad_path(f"{content.safe_repr(text, 80)} is not of the form path=value")
    return Edit(_parse_path(found[0].strip()), _parse_value(text[found.end() + 1 :], found[0]))


def _parse_path(path: str) -> tuple[str | int, ...]:
    steps: list[str | int] = []
    place = 0
    while place < len(path):
        found = _STEP.match(path, place)
        if found is None:
            raise _bad_path(f"the path {content.safe_repr(path, 80)} is not understood")
        place = found.end()
        index = found["index"]
        steps.append(int(index) if index is not None else found["name"] or found["quoted"] or "")
    return tuple(steps)


def _parse_value(text: str, path: str) -> Any:
    try:
        return content.decode(text, what=content.clean_text(path, 80))
    except BadInput as refusal:
        if refusal.code == "bad_json" and text[:1].isalpha():
            return text
        raise


def apply_edits(payload: Any, edits: tuple[Edit, ...]) -> Any:
    """A copy of the payload with all edits made."""
    payload = copy.deepcopy(payload)
    for edit in edits:
        parent = payload
        for number, step in enumerate(edit.path[:-1]):
            parent = _child_at(parent, step, edit.path[: number + 1])
        _put(parent, edit)
    return payload


def _child_at(parent: Any, step: str | int, path: tuple[str | int, ...]) -> Any:
    if not _has_step(parent, step):
        raise _missing_path(path)
    return parent[step]


def _put(parent: Any, edit: Edit) -> None:
    last = edit.path[-1]
    is_new_name = isinstance(parent, dict) and isinstance(last, str)
    if not is_new_name and not _has_step(parent, last):
        raise _missing_path(edit.path)
    parent[last] = edit.value


def _has_step(parent: Any, step: str | int) -> bool:
    if isinstance(step, int):
        return isinstance(parent, list) and step < len(parent)
    return isinstance(parent, dict) and step in parent


def _missing_path(path: tuple[str | int, ...]) -> BadInput:
    place = content.field_path("payload", path)
    return BadInput(f"the payload has no {place}", code="bad_path", hint=_HINT, field=place)


def _bad_path(problem: str) -> BadInput:
    return BadInput(problem, code="bad_path", hint=_HINT, field="set")


_HINT = 'write it as customer.items[0].price=5; a name with dots as ["a.b"]'
