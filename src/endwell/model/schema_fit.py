"""Schema fit: whether a value surely fits a JSON Schema, asked of every payload that is submitted.

A schema becomes one function, made once. It may only err on the side of no, and `schema_check` then looks
closely and says where. So it leaves out what is rare, and everything that could make it look at a part of the
value twice; it must never say yes where the close look objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from endwell.model.schema_check import is_of, is_same, limits_of, resolved

Fits = Callable[[Any], bool]

_LEFT_OUT: Final = ("allOf", "patternProperties", "prefixItems", "discriminator")
_LOOKS_INSIDE: Final = ("properties", "additionalProperties", "items", "$ref", "anyOf", "oneOf")
_OF_OBJECTS: Final = ("required", "properties", "additionalProperties")


class _LeftOutError(Exception):
    """The close look is needed for every value of this schema."""


def compiled(schema: Any) -> Fits:
    """Says of a value whether it surely fits."""
    try:
        fit = _Compiler(schema).fit(schema)
    except Exception:  # left out, or a schema that makes no sense: the close look knows what to do
        return lambda value: False

    def surely(value: Any) -> bool:
        try:
            return fit(value)
        except Exception:  # a bound that cannot be compared: likewise
            return False

    return surely


class _Compiler:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._open: list[str] = []
        """The references that are being followed; one that comes back to itself is left out."""

    def fit(self, schema: Any) -> Fits:
        if not isinstance(schema, dict):
            return lambda value: schema is not False
        if any(keyword in schema for keyword in _LEFT_OUT):
            raise _LeftOutError
        return _all([*_of_value(schema), *self._inside(schema)])

    def _inside(self, schema: dict[str, Any]) -> list[Fits]:
        """At most one of these, so that no part of a value is looked at twice."""
        parts: list[Fits] = []
        if any(keyword in schema for keyword in (*_OF_OBJECTS, "items")):
            parts.append(self._of_parts(schema))
        if "$ref" in schema:
            parts.append(self._reference(schema["$ref"]))
        if choices := schema.get("anyOf") or schema.get("oneOf"):
            parts.append(self._any_of(choices))
        if len(parts) > 1:
            raise _LeftOutError
        return parts

    def _of_parts(self, schema: dict[str, Any]) -> Fits:
        required = frozenset(schema.get("required", ()))
        known = {name: self.fit(below) for name, below in schema.get("properties", {}).items()}
        others = self.fit(schema.get("additionalProperties", True))
        items = self.fit(schema.get("items", True))

        def fits(value: Any) -> bool:
            if isinstance(value, dict):
                return required <= value.keys() and all(
                    known.get(name, others)(below) for name, below in value.items()
                )
            return not isinstance(value, list | tuple) or all(map(items, value))

        return fits

    def _reference(self, reference: str) -> Fits:
        if reference in self._open:
            raise _LeftOutError
        self._open.append(reference)
        fits = self.fit(resolved(self._root, reference))
        self._open.pop()
        return fits

    def _any_of(self, choices: list[Any]) -> Fits:
        if sum(_looks_inside(choice) for choice in choices) > 1:
            raise _LeftOutError
        fits = [self.fit(choice) for choice in choices]
        return lambda value: any(fit(value) for fit in fits)


def _looks_inside(schema: Any) -> bool:
    return isinstance(schema, dict) and any(keyword in schema for keyword in _LOOKS_INSIDE)


def _of_value(schema: dict[str, Any]) -> list[Fits]:
    parts: list[Fits] = []
    if "type" in schema:
        kind = schema["type"]
        if isinstance(kind, list):
            parts.append(lambda value: any(is_of(one, value) for one in kind))
        else:
            parts.append(lambda value: is_of(kind, value))
    if "const" in schema:
        parts.append(lambda value: is_same(value, schema["const"]))
    if "enum" in schema:
        parts.append(lambda value: any(is_same(value, member) for member in schema["enum"]))
    return parts + [_limit(*limit) for limit in limits_of(schema)]


def _limit(kinds: tuple[type, ...], holds: Callable[[Any, Any], bool], bound: Any) -> Fits:
    return lambda value: not isinstance(value, kinds) or isinstance(value, bool) or holds(value, bound)


def _all(parts: list[Fits]) -> Fits:
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:
        first, second = parts
        return lambda value: first(value) and second(value)
    return lambda value: all(part(value) for part in parts)
