"""Names: what agents, tools, channels, keys and namespaces may be called.

A name that passes here is safe in a file path, a URL, a queue subject and a terminal. Other names are
refused as BadInput with the code `bad_name`, saying what is allowed.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from endwell.errors import BadInput
from endwell.model.content import clean_text, printable_text, safe_repr

DEFAULT_CHANNEL: Final = "main"
"""The channel of a task that was submitted without one."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_KEY: Final = re.compile(r"[A-Za-z0-9_.:@-]{1,128}")
_ALLOWED: Final = {
    _NAME: "1 to 64 of a-z, 0-9, _ and -, beginning with a letter or digit",
    _KEY: "1 to 128 of A-Z, a-z, 0-9 and _ . : @ -",
}
_SHOWN_LIMIT: Final = 80

_PERSON_LIMIT: Final = 200
# letters and marks that count as printable although they are invisible
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def agent_name(text: str) -> str:
    """The text, if an agent may be called so."""
    return _checked_name(_NAME, text, "agent", "agent name")


def tool_name(text: str) -> str:
    """The text, if a tool may be called so."""
    return _checked_name(_NAME, text, "tool", "tool name")


def signal_name(text: str) -> str:
    """The text, if a signal may be called so."""
    return _checked_name(_NAME, text, "signal", "signal name")


def channel_name(text: str) -> str:
    """The text, if a channel may be called so."""
    return _checked_name(_NAME, text, "channel", "channel name")


def agent_key(text: str) -> str:
    """The text, if it can tell one instance of an agent from another."""
    return _checked_name(_KEY, text, "agent_key", "agent key")


def idempotency_key(text: str) -> str:
    """The text, if it can mark two submissions as the same."""
    return _checked_name(_KEY, text, "idempotency_key", "idempotency key")


def namespace_name(text: str) -> str:
    """The text, if a namespace may be called so."""
    return _checked_name(_KEY, text, "namespace", "namespace")


def person_name(text: object, field: str = "by") -> str:
    """The text, if a person may be called so, in one form. Names stand in lists that commas separate."""
    if isinstance(text, str) and len(text) <= _PERSON_LIMIT and text.isprintable():
        name = " ".join(unicodedata.normalize("NFC", text).split())
        if name and "," not in name and not _INVISIBLE.search(name):
            return name
    hint = f"Allowed: printable text of up to {_PERSON_LIMIT} characters, without commas."
    problem = f"{safe_repr(text, _SHOWN_LIMIT)} is not a valid name of a person"
    raise BadInput(problem, code="bad_name", hint=hint, field=field)


def same_person(name: str) -> str:
    """A form that is equal for two spellings of a name: case, width and white space do not count."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def agent_reference(text: str) -> tuple[str, str | None]:
    """Split `coder/issue-42` into agent and key; `coder` alone has no key."""
    if not isinstance(text, str):
        return agent_name(text), None
    agent, slash, key = text.partition("/")
    return agent_name(agent), agent_key(key) if slash else None


def by_channel(agent: str, channel: str) -> str:
    """An agent on a channel, as topics name it; the default channel is left out."""
    return agent if channel == DEFAULT_CHANNEL else f"{agent}/{channel}"


def _checked_name(pattern: re.Pattern[str], text: object, field: str, what: str) -> str:
    if isinstance(text, str) and pattern.fullmatch(text):
        return text
    bad = (
        f'"{clean_text(printable_text(text), _SHOWN_LIMIT)}"'
        if isinstance(text, str)
        else safe_repr(text, _SHOWN_LIMIT)
    )
    hint = f"Allowed: {_ALLOWED[pattern]}."
    raise BadInput(f"{bad} is not a valid {what}", code="bad_name", hint=hint, field=field)
