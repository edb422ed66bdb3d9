"""Schema check: does a value fit a JSON Schema, and if not, where?

A submitter refuses a wrong payload without the agent's code, by the schema in the store. The check reads
what msgspec and Pydantic write and ignores every other keyword: the worker may still refuse what passes here.
Like the typed check it is strict: `5.0` is no integer, `true` is no number. `oneOf` is read as `anyOf`, and
`pattern` is left to the worker: a regular expression can take minutes, on the submitter's event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from endwell.errors import BadInput
from endwell.model.content import MAX_DEPTH, clean_text, field_path, printable_text, safe_repr

HINT: Final = "Compare it with the types in the agent's signature."

_GOT_LIMIT: Final = 60
_WANTED_LIMIT: Final = 300
_TYPE_NAMES: Final = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "text",
}


class SchemaFault(msgspec.Struct, frozen=True):
    """Why a value does not fit. `path` starts at the value; `wanted` is what would fit there."""

    problem: str
    wanted: str = ""
    path: tuple[str | int, ...] = ()

    def at_place(self, place: str | int) -> SchemaFault:
        return SchemaFault(self.problem, self.wanted, (place, *self.path))


Finding = SchemaFault | None


def check(value: Any, schema: dict[str, Any], what: str = "payload") -> None:
    """Refuse a value that does not fit, as `bad_payload` naming the field."""
    try:
        fault = _Checker(schema).find_fault(value, schema)
        field = field_path(what, fault.path) if fault else what
    except Exception:  # the schema, which another program wrote, is invalid: the worker will decide
        return
    if fault:
        raise BadInput(f"{field} {fault.problem}", code="bad_payload", hint=HINT, field=field)


class _Checker:
    """One check. It remembers each `$ref` that it tried on a value, so that no schema makes it loop."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self.tried: dict[tuple[str, int], Finding] = {}
        self.depth = 0

    def find_fault(self, value: Any, schema: Any) -> Finding:
        """The first reason why the value does not fit, if any."""
        if not isinstance(schema, dict):
            return SchemaFault("is not allowed here") if schema is False else None
        if found := _scalar_fault(value, schema):
            return found
        if isinstance(value, dict):
            found = self._in_object(value, schema)
        elif isinstance(value, list | tuple):
            found = self._in_list(value, schema)
        return found or self._fault_of_choices(value, schema)

    def _fault_inside(self, place: str | int, value: Any, schema: Any) -> Finding:
        if self.depth >= MAX_DEPTH:
            return SchemaFault(f"is nested more than {MAX_DEPTH} levels deep")
        self.depth += 1
        found = self.find_fault(value, schema)
        self.depth -= 1
        return found.at_place(place) if found else None

    def _in_object(self, value: dict[str, Any], schema: dict[str, Any]) -> Finding:
        for name in schema.get("required", ()):
            if name not in value:
                return SchemaFault("is missing", path=(name,))
        known = schema.get("properties", {})
        others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        # Scalars first: they tell the members of a union apart, and cost least.
        for name, item in sorted(value.items(), key=lambda entry: isinstance(entry[1], dict | list)):
            if name not in known and others is False:
                return SchemaFault("is not a known field", path=(name,))
            if found := self._fault_inside(name, item, known.get(name, others)):
                return found
        return None

    def _in_list(self, value: list[Any] | tuple[Any, ...], schema: dict[str, Any]) -> Finding:
        first = schema.get("prefixItems", ())
        rest = schema.get("items", True)
        for place, item in enumerate(value):
            if found := self._fault_inside(place, item, first[place] if place < len(first) else rest):
                return found
        return None

    def _fault_of_choices(self, value: Any, schema: dict[str, Any]) -> Finding:
        if found := self._by_reference(value, schema.get("$ref")):
            return found
        for part in schema.get("allOf", ()):
            if found := self.find_fault(value, part):
                return found
        choices = schema.get("anyOf") or schema.get("oneOf") or ()
        if choices and isinstance(value, dict) and "mapping" in schema.get("discriminator", ()):
            return self._by_tag(value, schema["discriminator"])
        return self._any_of(value, choices)

    def _by_reference(self, value: Any, reference: str | None) -> Finding:
        if reference is None:
            return None
        key = (reference, id(value))
        if key not in self.tried:
            self.tried[key] = None  # a schema that refers back to itself adds nothing
            self.tried[key] = self.find_fault(value, _resolve_reference(self.root, reference))
        return self.tried[key]

    def _by_tag(self, value: dict[str, Any], discriminator: dict[str, Any]) -> Finding:
        name, mapping = discriminator["propertyName"], discriminator["mapping"]
        tag = value.get(name)
        if isinstance(tag, bool) or str(tag) not in mapping:
            return _unexpected_value(tag, " or ".join(sorted(mapping))).at_place(name)
        return self._by_reference(value, mapping[str(tag)])

    def _any_of(self, value: Any, choices: Any) -> Finding:
        faults = []
        for choice in choices:
            found = self.find_fault(value, choice)
            if found is None:
                return None
            faults.append(found)
        return _closest_fault(value, faults) if faults else None


def _resolve_reference(root: Any, reference: str) -> Any:
    """The part of the schema that a `$ref` refers to."""
    found = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _closest_fault(value: Any, faults: list[SchemaFault]) -> SchemaFault:
    """Of the faults of all members, the deepest one; without any depth, what all members wanted."""
    deepest = max(faults, key=lambda fault: len(fault.path))
    if deepest.path:
        return deepest
    wanted = dict.fromkeys(fault.wanted for fault in faults if fault.wanted)
    return _unexpected_value(value, " or ".join(wanted)) if wanted else deepest


def _scalar_fault(value: Any, schema: dict[str, Any]) -> Finding:
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is_of_type(kind, value) for kind in kinds):
            return _unexpected_value(value, " or ".join(_TYPE_NAMES.get(kind, str(kind)) for kind in kinds))
    if "const" in schema and not _is_same(value, schema["const"]):
        return _unexpected_value(value, _short_form(schema["const"]))
    if "enum" in schema and not any(_is_same(value, member) for member in schema["enum"]):
        return _unexpected_value(value, " or ".join(map(_short_form, schema["enum"])))
    return _limit_fault(value, schema)


def _limit_fault(value: Any, schema: dict[str, Any]) -> Finding:
    for keyword, bound in schema.items():
        kinds, holds, wanted = _LIMITS.get(keyword, _NO_LIMIT)
        if isinstance(value, kinds) and not isinstance(value, bool) and not holds(value, bound):
            return _unexpected_value(value, wanted.format(bound))
    return None


_Limit = tuple[tuple[type, ...], Callable[[Any, Any], bool], str]
_NUMBER: Final = (int, float)
_NO_LIMIT: Final[_Limit] = ((), lambda value, bound: True, "")
_LIMITS: Final[dict[str, _Limit]] = {
    "minimum": (_NUMBER, lambda value, bound: value >= bound, "at least {}"),
    "maximum": (_NUMBER, lambda value, bound: value <= bound, "at most {}"),
    "exclusiveMinimum": (_NUMBER, lambda value, bound: value > bound, "more than {}"),
    "exclusiveMaximum": (_NUMBER, lambda value, bound: value < bound, "less than {}"),
    "multipleOf": ((int,), lambda value, bound: value % bound == 0, "a multiple of {}"),
    "minLength": ((str,), lambda value, bound: len(value) >= bound, "text of at least {} characters"),
    "maxLength": ((str,), lambda value, bound: len(value) <= bound, "text of at most {} characters"),
    "minItems": ((list, tuple), lambda value, bound: len(value) >= bound, "a list of at least {} items"),
    "maxItems": ((list, tuple), lambda value, bound: len(value) <= bound, "a list of at most {} items"),
    "minProperties": ((dict,), lambda value, bound: len(value) >= bound, "an object of at least {} fields"),
    "maxProperties": ((dict,), lambda value, bound: len(value) <= bound, "an object of at most {} fields"),
}
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "array": (list, tuple),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": _NUMBER,
    "object": (dict,),
    "string": (str,),
}


def _is_of_type(kind: str, value: Any) -> bool:
    """Whether a value is of a type that a schema names."""
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _KINDS.get(kind, (object,)))


def _is_same(value: Any, other: Any) -> bool:
    """Equal, and of the same type: `1` is neither `true` nor `1.0`."""
    return type(value) is type(other) and bool(value == other)


def _unexpected_value(value: Any, wanted: str) -> SchemaFault:
    wanted = clean_text(
        printable_text(wanted), _WANTED_LIMIT
    )  # a constant or a list of choices may be of any length
    return SchemaFault(f"should be {wanted}, not {_short_form(value)}", wanted)


def _short_form(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, str):
        return f'"{clean_text(printable_text(value), _GOT_LIMIT)}"'
    return "null" if value is None else safe_repr(value, _GOT_LIMIT)
