"""Fuzzing decoders of settings: the file, the environment, the URL of the store."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Final

import click

from endwell.cli.base.values import parse_duration
from endwell.errors import EndwellError
from endwell.settings import Settings, describe, load, mask_url, override
from endwell.settings.check import check
from endwell.settings.sections import KEYS
from endwell.settings.sources import FILE_NAME
from endwell.settings.store_url import sqlite_path, store_url
from tests.proof.fuzz.campaign import Target
from tests.proof.fuzz.mutate import Maker, one_of
from tests.proof.fuzz.of_content import told

_FILES: Final = (
    b'store = "sqlite:///endwell.db"\n[worker]\nlease_seconds = 30\nheartbeat_seconds = 10.0\n',
    b"[retry]\ndelays = [1, 5, 30.5]\njitter = 0.2\n[pmo]\nrunaway_limit = 10\n",
    b'[human]\nowner = "ada"\n[queue]\nkind = "native"\n',
    b'store = "postgresql://user:secret@host/db"\n[task]\ndeadline_seconds = 86_400\n',
    b'# nothing but a remark\n[app]\ntarget = "app:app"\n',
)
_SECRET: Final = re.compile(r"://[^:@/?#\s]*:pass@")
_VALUES: Final = (
    b"30",
    b"0.05",
    b"1,5,30",
    b"[1,2.5]",
    b"native",
    b"ada,bob",
    b"",
    b"1e3",
    b"sqlite:///x.db",
)
_URLS: Final = (
    b"sqlite:///endwell.db",
    b"sqlite:////var/lib/endwell.db",
    b"postgresql://user:pass@host:5432/db?sslmode=require",
    b"postgres://host/db",
    b"sqlite:///with%20space.db",
)


def _checked(settings: Settings) -> bool:
    check(settings)
    describe(settings)
    store_url(settings, None)
    return True


def _file(home: Path) -> Target:
    home.mkdir()

    def take(data: bytes) -> bool:
        (home / FILE_NAME).write_bytes(data)
        try:
            return _checked(load({}, home))
        except EndwellError as refusal:
            return told(refusal, exit_code=2)

    return Target(name="settings-file", share=50, valid=one_of(_FILES), take=take)


def _variables(dice: Random) -> bytes:
    names = [f"ENDWELL__{key.upper().replace('.', '__')}" for key in KEYS if "." in key]
    names += ["ENDWELL_STORE", "MAX_RETRIES", "VISIBILITY_TIMEOUT_S"]
    lines = [dice.choice(names).encode() + b"=" + dice.choice(_VALUES) for _ in range(dice.choice((1, 1, 2)))]
    return b"\n".join(lines)


def _environment(home: Path) -> Target:
    """Read one variable per line; leave out what the system does not allow as a variable."""
    home.mkdir()

    def take(data: bytes) -> bool:
        environ = {}
        for line in data.replace(b"\0", b"").split(b"\n"):
            name, _, value = line.decode("utf-8", "surrogateescape").partition("=")
            environ[name] = value
        try:
            return _checked(load(environ, home))
        except EndwellError as refusal:
            return told(refusal, exit_code=2)

    return Target(name="environment", share=50, valid=_variables, take=take)


def _url(data: bytes) -> bool:
    text = data.decode("utf-8", "surrogateescape")
    assert not _SECRET.search(mask_url(text))
    try:
        settings = override(Settings(), {"store": text}, source="--store")
        url = store_url(settings, None)
        if url.startswith("sqlite"):
            sqlite_path(url)
    except EndwellError as refusal:
        return told(refusal)
    return True


def _duration(data: bytes) -> bool:
    try:
        parse_duration(data.decode("utf-8", "surrogateescape"))
    except click.BadParameter:
        return False
    return True


_durations: Maker = one_of((b"90", b"90s", b"1.5m", b"2h", b"3d", b" 7 ", b"1e3s"))


def targets(home: Path) -> tuple[Target, ...]:
    return (
        _file(home / "file"),
        _environment(home / "environment"),
        Target(name="store-url", share=50, valid=one_of(_URLS), take=_url),
        Target(name="duration", share=30, valid=_durations, take=_duration),
    )
