"""Settings as they may be shown: with their sources, and without passwords."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from endwell.settings.sections import KEYS, Settings

_URL_KEYS = frozenset({"store", "redis.url", "nats.url", "relay.url"})
_SECRET_KEYS = frozenset({"relay.secret"})

# Several servers may stand in one setting, separated by commas.
_NEXT_URL = re.compile(r",(?=[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
# Up to the last @: hiding too much of an odd URL is better than showing half of a password with an @ in it.
_USER_PASSWORD = re.compile(r"(://[^:@/?#\s]*):.*@", re.DOTALL)
_TOKEN_ONLY = re.compile(r"^(nats|tls|wss?)://[^:@/?#\s]+@", re.IGNORECASE)
_PARAMETER = re.compile(
    r"((?:^|[?&;\s])\w*(?:password|passwd|secret|token)\s*=\s*)('[^']*'|[^&;\s]*)", re.IGNORECASE
)


class Described(NamedTuple):
    """One line of `config show`."""

    key: str
    value: Any
    source: str


def describe(settings: Settings) -> list[Described]:
    """Every setting, its value fit to be shown, and its source."""
    return [Described(key, _shown(key, settings.value(key)), settings.source(key)) for key in KEYS]


def brief(text: str, limit: int = 200) -> str:
    """The text, cut where it is longer than anybody meant it to be."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def masked(url: str) -> str:
    """The URL, or several, with passwords and tokens replaced by `***`."""
    return ",".join(_masked_one(part) for part in each_url(url))


def each_url(urls: str) -> list[str]:
    """The URLs of several servers, each with its scheme; a comma may also be part of a password."""
    return _NEXT_URL.split(urls)


def _masked_one(url: str) -> str:
    url = _PARAMETER.sub(r"\1***", url)
    url = _USER_PASSWORD.sub(r"\1:***@", url)
    return _TOKEN_ONLY.sub(r"\1://***@", url)


def _shown(key: str, value: Any) -> Any:
    if key in _SECRET_KEYS:
        return "***" if value else ""
    return masked(value) if key in _URL_KEYS else value
