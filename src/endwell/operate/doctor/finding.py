"""What the doctor looks at, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from endwell.doorbell.contract import BellHealth
from endwell.redis_client import Connect
from endwell.runtime.clock import Clock
from endwell.settings import Settings
from endwell.store.contract import Store

Severity = Literal["warning", "error"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not in order. `code` is stable; `remedy` says what to do."""

    code: str
    severity: Severity
    message: str
    remedy: str
    namespace: str | None = None
    facts: dict[str, Any] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Patient:
    """One installation, opened. `path` is the store's file, where it is one."""

    store: Store
    bell: BellHealth
    clock: Clock
    settings: Settings
    namespaces: tuple[str, ...]
    path: Path | None = None
    least_free_bytes: int = 256 * 1024 * 1024
    facts: dict[str, Any] = field(default_factory=dict)
    """What the database says of itself."""
    connect_stream: Connect | None = None
    """Reaches the server that carries the turns, where there is one."""
