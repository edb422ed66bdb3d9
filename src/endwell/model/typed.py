"""Typed payloads and results: what an agent function asks for and what it promises.

A `Shape` stands for one annotation. It turns plain JSON values into that type, strictly (`"5"` is not
an int), or refuses them as `bad_payload` naming the field; and it writes itself down as a JSON Schema,
so that others can check without the agent's code. msgspec does the work; annotations with Pydantic in
them go to Pydantic, which is imported only then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, Final

import msgspec

from endwell.errors import BadInput, UsageError
from endwell.model import schema_check
from endwell.model.content import decode_stored, encode, field_path, safe_str

Schema = dict[str, Any]

_MISSING: Final = inspect.Parameter.empty
_ANYTHING: Final = (Any, object, typing.Never, typing.NoReturn, _MISSING)
_PROBLEM_LIMIT: Final = 300
_TYPE_HINT: Final = "Use builtins, dataclasses, TypedDicts, enums, msgspec Structs or Pydantic models."
_USAGE_HINT: Final = "Write it as f(ctx, payload), f(payload), f(ctx) or f()."
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_CONTEXTS: Final = ("Context", "SyncContext")
_MSGSPEC_PLACE: Final = re.compile(r" - at `(?:key` in `)?\$(.*)`$")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """One annotation, able to check values."""

    annotation: Any
    _make: Callable[[Any], Any] | None = None
    _schema: Schema | None = None

    @classmethod
    def of(cls, annotation: Any = _MISSING) -> Shape:
        """The shape of an annotation; without one, or with Any, everything fits."""
        if any(annotation is anything for anything in _ANYTHING):
            return cls(annotation=Any)
        try:
            return (_pydantic_shape if _mentions_pydantic(annotation) else _msgspec_shape)(annotation)
        except Exception as error:
            problem = f"{_name_of(annotation)} cannot be made from JSON: {safe_str(error, _PROBLEM_LIMIT)}"
            raise UsageError(problem, hint=_TYPE_HINT) from error

    def check(self, value: Any, what: str = "payload") -> Any:
        """The value as an instance of the annotation; refused if it does not fit."""
        if self._make is None:
            return value
        try:
            return self._make(value)
        except Exception as error:  # also what the type's own validators may raise
            raise self._bad_payload(value, what, error) from error

    def schema(self) -> Schema | None:
        """The JSON Schema of what fits; None when everything does."""
        return self._schema

    def _bad_payload(self, value: Any, what: str, error: Exception) -> BadInput:
        """Prefer the schema's words: they name the place exactly, and the command line says the same."""
        try:
            schema_check.check(value, self._schema or {}, what)
        except BadInput as refusal:
            return refusal
        field, problem = _place_and_problem(value, what, error)
        return BadInput(f"{field}: {problem}", code="bad_payload", hint=schema_check.HINT, field=field)


_ANY: Final = Shape(annotation=Any)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """How an agent function is to be called. `unresolved` lists annotations that could not be found
    and are taken as Any."""

    payload: Shape
    result: Shape
    takes_payload: bool
    payload_optional: bool
    wants_context: bool
    is_async: bool
    unresolved: tuple[str, ...] = ()


def signature_of(function: Callable[..., Any]) -> Signature:
    """Read an agent function: `f(ctx, payload)`, `f(payload)`, `f(ctx)` or `f()`, async or not."""
    _check_kind(function)
    hints = _Hints(function)
    parameters = list(hints.parameters)
    wants_context = bool(parameters) and _is_context(parameters[0], hints)
    payload = _only_payload(function, parameters[wants_context:])
    try:
        return Signature(
            payload=Shape.of(hints.of(payload.annotation) if payload else None),
            result=Shape.of(hints.of(hints.returns)),
            takes_payload=payload is not None,
            payload_optional=payload is not None and payload.default is not _MISSING,
            wants_context=wants_context,
            is_async=inspect.iscoroutinefunction(_underlying_function(function)),
            unresolved=tuple(dict.fromkeys(hints.unresolved)),
        )
    except UsageError as error:
        raise UsageError(f"{_name_of(function)}: {error.message}", hint=error.hint) from error


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    if type(function) is types.FunctionType and function.__code__.co_flags & inspect.CO_COROUTINE:
        return True  # asked of every step
    return inspect.iscoroutinefunction(_underlying_function(function))


def result_of(function: Callable[..., Any]) -> Shape:
    """The shape of what any function returns, by its annotation."""
    named = getattr(_underlying_function(function), "__annotations__", None)
    if inspect.isclass(function) or not named or "return" not in named:
        return _ANY
    return _annotated_result(function)


@functools.lru_cache(maxsize=1024)
def _annotated_result(function: Callable[..., Any]) -> Shape:
    hints = _Hints(function)
    try:
        return Shape.of(hints.of(hints.returns))
    except UsageError as error:
        hint = "Say what it returns with result=, or let the function return JSON values."
        raise UsageError(f"{_name_of(function)}: {error.message}", hint=hint) from error


def _msgspec_shape(annotation: Any) -> Shape:
    try:
        schema = _as_stored(msgspec.json.schema(annotation, schema_hook=_nested_model_schema))
    except TypeError as refusal:
        try:
            return _pydantic_shape(annotation)  # knows some unions that msgspec does not
        except Exception:
            raise refusal from None
    make = functools.partial(msgspec.convert, type=annotation, dec_hook=_nested_model)
    return Shape(annotation=annotation, _make=make, _schema=schema)


def _pydantic_shape(annotation: Any) -> Shape:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema

    adapter = TypeAdapter(annotation)
    try:
        schema = _as_stored(adapter.json_schema())
    except PydanticInvalidForJsonSchema:
        schema = {}

    def convert_value(value: Any) -> Any:
        return adapter.validate_json(encode(value), strict=True)

    return Shape(annotation=annotation, _make=convert_value, _schema=schema)


def _as_stored(schema: Schema) -> Schema:
    """The schema as it will be read back from a store: numeric keys as text, no NaN in defaults."""
    stored: Schema = decode_stored(msgspec.json.encode(schema))
    return stored


def _mentions_pydantic(annotation: Any) -> bool:
    owner = annotation if isinstance(annotation, type) else type(annotation)
    if hasattr(annotation, "__pydantic_core_schema__") or hasattr(annotation, "__get_pydantic_core_schema__"):
        return True
    if owner.__module__.partition(".")[0] in ("pydantic", "annotated_types"):
        return True
    return any(map(_mentions_pydantic, typing.get_args(annotation)))


def _nested_model(kind: Any, value: Any) -> Any:
    if hasattr(kind, "model_validate_json"):
        return kind.model_validate_json(encode(value), strict=True)
    raise NotImplementedError


def _nested_model_schema(kind: Any) -> Schema:
    if hasattr(kind, "model_validate_json"):
        return {"title": kind.__name__}
    raise NotImplementedError


def _place_and_problem(value: Any, what: str, error: Exception) -> tuple[str, str]:
    """Where and what, from the words of msgspec, Pydantic or the user's own validator."""
    if hasattr(error, "errors"):
        first = error.errors(include_url=False, include_context=False)[0]
        return field_path(what, _path_in_value(value, first["loc"])), safe_str(first["msg"], _PROBLEM_LIMIT)
    text = safe_str(error, _PROBLEM_LIMIT)
    if place := _MSGSPEC_PLACE.search(text):
        return what + place[1], text[: place.start()]
    return what, text


def _path_in_value(value: Any, location: tuple[str | int, ...]) -> list[str | int]:
    """Pydantic's location without the names of union members, which are not in the value."""
    found = []
    for part in location:
        with contextlib.suppress(LookupError, TypeError):
            value = value[part]
            found.append(part)
    return found


class _Hints:
    """The annotations of a function, each resolved by itself, so that one failure spoils no other."""

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            found = _inspect_signature(function)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{_name_of(function)} cannot be inspected: {error}", hint=_USAGE_HINT
            ) from error
        self.parameters = found.parameters.values()
        self.returns = found.return_annotation
        self.unresolved: list[str] = []
        self._names = _visible_names(function)

    def of(self, annotation: Any) -> Any:
        """The annotation with its strings resolved; Any when that is impossible."""

        def annotated_function() -> None: ...

        annotated_function.__annotations__ = {"it": annotation}
        try:
            return typing.get_type_hints(annotated_function, self._names, include_extras=True)["it"]
        except Exception:
            self.unresolved.append(str(annotation))
            return Any


def _inspect_signature(function: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def _visible_names(function: Callable[..., Any]) -> dict[str, Any]:
    inner = inspect.unwrap(_underlying_function(function))
    names = dict(getattr(inner, "__globals__", {}))
    code, cells = getattr(inner, "__code__", None), getattr(inner, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
        with contextlib.suppress(ValueError):  # a cell that has no value yet
            names[name] = cell.cell_contents
    return names


def _underlying_function(function: Any) -> Any:
    """The function that runs in the end: inside a partial, a method or an object with `__call__`."""
    if type(function) is types.FunctionType:  # asked of every step
        return function
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return getattr(function, "__func__", function)
    return type(function).__call__


def _check_kind(function: Any) -> None:
    if not callable(function) or inspect.isclass(function):
        raise UsageError(f"{_name_of(function)} is not a function", hint=_USAGE_HINT)
    called = _underlying_function(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise UsageError(f"{_name_of(function)} yields; an agent function returns its result")


def _is_context(parameter: inspect.Parameter, hints: _Hints) -> bool:
    if parameter.name == "ctx" or str(parameter.annotation).rpartition(".")[2] in _CONTEXTS:
        return True
    return getattr(hints.of(parameter.annotation), "__name__", "") in _CONTEXTS


def _only_payload(function: Any, parameters: list[inspect.Parameter]) -> inspect.Parameter | None:
    """The parameter that takes the payload, if any; all others must have a default."""
    first = parameters[0] if parameters and parameters[0].kind in _POSITIONAL else None
    for parameter in parameters[first is not None :]:
        if parameter.default is _MISSING:
            problem = f"{_name_of(function)} has a parameter that Endwell cannot fill: {parameter}"
            raise UsageError(problem, hint=_USAGE_HINT)
    return first


def _name_of(thing: Any) -> str:
    return getattr(thing, "__qualname__", None) or safe_str(thing, _PROBLEM_LIMIT)
