"""Read settings from a file, the environment and the caller. Every refusal names the source."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from endwell.errors import BadSetting
from endwell.settings.sections import KEYS, Settings
from endwell.settings.show import shorten_text

FILE_NAME = "endwell.toml"
STORE_VARIABLE = "ENDWELL_STORE"
PREFIX = "ENDWELL__"
PLAIN_VARIABLES = ("VISIBILITY_TIMEOUT_S", "HEARTBEAT_INTERVAL_S", "MAX_RETRIES", "RECLAIM_INTERVAL_S")
"""Also read without prefix; the variable with the prefix wins."""

_SECTIONS = {key.partition(".")[0] for key in KEYS if "." in key}
_VARIABLES = {PREFIX + key.upper().replace(".", "__"): key for key in KEYS if "." in key}


def load(environ: Mapping[str, str], directory: Path) -> Settings:
    """The settings for a program started in `directory` with this environment."""
    settings = _with_file(Settings(), directory / FILE_NAME)
    for variable, key in _variables_in(environ):
        settings = override(
            settings, {key: _parse_variable(key, environ[variable], variable)}, source=variable
        )
    return settings


def override(settings: Settings, values: Mapping[str, object], *, source: str) -> Settings:
    """The settings with some values, by full key, replaced."""
    for key, raw in values.items():
        if key not in KEYS:
            raise _unknown_key(key, KEYS, source)
        settings = _replace_value(settings, key, _read(key, raw, source), source)
    return settings


def _with_file(settings: Settings, path: Path) -> Settings:
    try:
        text = path.read_bytes().decode()
        found = tomllib.loads(text)
    except FileNotFoundError:
        return settings
    except RecursionError:
        raise BadSetting(f"{path} cannot be read: it is nested too deeply") from None
    except (OSError, ValueError) as error:  # not UTF-8, not TOML, a number that Python refuses to read
        raise BadSetting(f"{path} cannot be read: {shorten_text(str(error))}") from error
    return override(settings, flatten_tables(found, str(path)), source=str(path))


def flatten_tables(found: Mapping[str, Any], source: str) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in found.items():
        if isinstance(value, dict) and (value or name in _SECTIONS):
            flat |= {f"{name}.{key}": item for key, item in value.items()}
        elif name in _SECTIONS:
            raise _bad_value(name, source, f"is a section: write [{name}] and its keys below")
        else:
            flat[name] = value
    return flat


def _variables_in(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """The variables that are settings, with their keys; the last one for a key wins."""
    named = [(name, f"queue.{name}") for name in PLAIN_VARIABLES if name in environ]
    if environ.get(STORE_VARIABLE):  # many tools leave an unset variable empty
        named.append((STORE_VARIABLE, "store"))
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        if variable.upper() not in _VARIABLES:
            raise _unknown_key(variable, [*_VARIABLES, STORE_VARIABLE], "environment")
        named.append((variable, _VARIABLES[variable.upper()]))
    return named


def _parse_variable(key: str, text: str, source: str) -> object:
    """A variable's text as a value of the type that the file would have."""
    kind = KEYS[key].type
    try:
        if kind is float or kind is int:
            return kind(text)
        if kind == tuple[str, ...] and not text.strip().startswith("["):
            return [item for item in text.split(",") if item.strip()]
        return text if kind is str else _list(text)
    except (ValueError, msgspec.DecodeError, RecursionError):
        wanted = {float: "a number", int: "a whole number"}.get(kind, "a list such as 1,5,30")
        raise _bad_value(key, source, f"must be {wanted}, not {text!r}") from None


def _list(text: str) -> object:
    if text.strip().startswith("["):
        return msgspec.json.decode(text)
    return [float(item) for item in text.split(",")] if text.strip() else []


def _read(key: str, raw: object, source: str) -> Any:
    try:
        return KEYS[key].read(raw)
    except OverflowError:
        raise _bad_value(key, source, "is too large") from None
    except ValueError as error:
        raise _bad_value(key, source, str(error)) from None


def _replace_value(settings: Settings, key: str, value: Any, source: str) -> Settings:
    section, _, name = key.rpartition(".")
    changes = {name: value}
    if section:
        changes = {section: msgspec.structs.replace(getattr(settings, section), **changes)}
    return msgspec.structs.replace(settings, **changes, sources={**settings.sources, key: source})


def _bad_value(key: str, source: str, problem: str) -> BadSetting:
    return BadSetting(f"{key} (from {source}) {shorten_text(problem)}.", field=key)


def _unknown_key(key: str, valid: Iterable[str], source: str) -> BadSetting:
    key = shorten_text(key)
    spelled = {_spelling_of(candidate): candidate for candidate in valid}
    near = difflib.get_close_matches(_spelling_of(key), spelled, n=1, cutoff=0.5)
    hint = f"did you mean {spelled[near[0]]}?" if near else "`endwell config show` lists all settings"
    return BadSetting(f"{key} (from {source}) is not a setting; {hint}", field=key, hint=hint)


def _spelling_of(key: str) -> str:
    """The key without the common prefix, which would make all variables look alike."""
    return key.lower().removeprefix(PREFIX.lower())
