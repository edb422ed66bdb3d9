"""Show settings with their sources, and without passwords."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from endwell.settings.sections import KEYS, Settings

_URL_KEYS = frozenset({"store", "redis.url", "nats.url", "relay.url"})
_SECRET_KEYS = frozenset({"relay.secret"})

# Several servers may stand in one setting, separated by commas.
_NEXT_URL = re.compile(r",(?=[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
# Up to the last @: hiding too much of an odd URL is better than showing half of a password with an @.
_USER_PASSWORD = re.compile(r"(://[^:@/?#\s]*):.*@", re.DOTALL)
_NAMED_USER = re.compile(r"^(postgres(ql)?|mysql)://[^:@/?#\s%]*@", re.IGNORECASE)
# Where a port should be, anything but a number is a password.
_PASSWORD_AS_PORT = re.compile(r"((?://|[@,])[^:@/?#,\s\[\]]*):(?!\d*:?(?:[/?#,\s]|$)|\*{3}@)[^/?#,\s]*")
# A web address, even a mistyped one: anything with a scheme that is not a store or server of ours.
_WEB = re.compile(
    r"^(\s*(?:(?:https?|wss?):/{0,2}"
    r"|(?!(?:sqlite|postgres(?:ql)?|mysql|rediss?|valkeys?|nats|tls|unix)\W)[a-z][a-z0-9+.-]*(?::/{1,2}|//)))(.*)",
    re.IGNORECASE | re.DOTALL,
)
_END_OF_HOST = re.compile(r"[/?#\\\s;,%&=]|:(?!\d*:?(?:[/?#\\\s;,%&=]|$))")
_AFTER_HOST = re.compile(r"[/?#\\]")
# What stands before user and password, however it is mistyped: `postgres//`, `postgresql:/`, `me:`, nothing.
_BEFORE_USER = re.compile(r"^(?:[A-Za-z][A-Za-z0-9+.-]*(?:[:;]/*|/+)|/*)")
_PARAMETER = re.compile(
    r"((?:^|[?&;\s])[\w-]*(?:pass(?:word|wd|code|phrase)?|pwd?|secret|token|key|auth|sig|signature"
    r"|credentials?)\s*=\s*)"
    r"('[^']*'|[^&;\s]*)",
    re.IGNORECASE,
)


class Described(NamedTuple):
    """One line of `config show`."""

    key: str
    value: Any
    source: str


def describe(settings: Settings) -> list[Described]:
    """Every setting with its value, passwords masked, and its source."""
    return [Described(key, _shown_value(key, settings.value(key)), settings.source(key)) for key in KEYS]


def shorten_text(text: str, limit: int = 200) -> str:
    """The text, cut at the limit."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def mask_url(url: str) -> str:
    """The URL, or several, with passwords and tokens replaced by `***`."""
    return ",".join(_masked_one(part) for part in each_url(url))


def each_url(urls: str) -> list[str]:
    """The URLs of several servers, each with its scheme; a comma may also be part of a password."""
    return _NEXT_URL.split(urls)


def _masked_one(url: str) -> str:
    """Show a user's name where it cannot be a token, and only the host of a web address."""
    if web := _WEB.match(url):
        return web[1] + _masked_web(web[2])
    url = _PARAMETER.sub(r"\1***", url)
    if url.lower().startswith("sqlite:///") and "@" in url:
        return _USER_PASSWORD.sub(r"\1:***@", url)
    return _PASSWORD_AS_PORT.sub(r"\1:***", _masked_user(url))


def _masked_user(url: str) -> str:
    if "@" not in url:
        return url
    if _USER_PASSWORD.search(url) or _NAMED_USER.match(url):
        return _USER_PASSWORD.sub(r"\1:***@", url)
    before = _BEFORE_USER.match(url)
    return f"{before[0] if before else ''}***@{url.rpartition('@')[2]}"


def _masked_web(rest: str) -> str:
    """Show only the host: a token is often part of a webhook's path, or stands where a user's name would."""
    user, at, rest = rest.rpartition("@")
    if _AFTER_HOST.search(user):  # the @ is part of a password or of the path: the host is uncertain
        return "***"
    host, *tail = _END_OF_HOST.split(rest, maxsplit=1)
    return f"{'***' if user else ''}{at}{host}{'/***' if any(tail) else ''}"


def _masked_relay(url: str) -> str:
    """A webhook without its scheme looks like a path."""
    return mask_url(url) if ":" in url.partition("/")[0] else _masked_web(url)


def _shown_value(key: str, value: Any) -> Any:
    if key in _SECRET_KEYS:
        return "***" if value else ""
    if key == "relay.url":
        return _masked_relay(value)
    return mask_url(value) if key in _URL_KEYS else value
