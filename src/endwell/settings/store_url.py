"""The URL of the store, and the path of its file."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from endwell.errors import BadSetting
from endwell.settings.sections import Settings
from endwell.settings.show import mask_url, shorten_text


def store_url(settings: Settings, in_code: str | None) -> str:
    """A setting outside the code wins, then the URL in the code, then the default."""
    url = in_code if in_code is not None and settings.source("store") == "default" else settings.store
    scheme = url.partition(":")[0].lower()  # no library parses every odd URL
    if scheme not in ("sqlite", "postgresql", "postgres"):
        raise BadSetting(
            f"store {shorten_text(mask_url(url))!r} is neither sqlite:/// nor postgresql://",
            hint="for example sqlite:///endwell.db",
            field="store",
        )
    return url


def sqlite_path(url: str) -> Path:
    """`sqlite:///file.db` is beside the caller, `sqlite:////var/file.db` is absolute."""
    path = unquote(url.removeprefix("sqlite:///"))
    if not url.startswith("sqlite:///") or not path or path == ":memory:":
        raise BadSetting(
            f"store {shorten_text(mask_url(url))!r} names no file",
            hint="for example sqlite:///endwell.db",
            field="store",
        )
    if "?" in url:
        raise BadSetting(
            f"store {shorten_text(mask_url(url))!r} has options, and a SQLite store takes none",
            hint="remove the ? and what follows; write %3F for a ? in the name of the file",
            field="store",
        )
    return Path(path)
