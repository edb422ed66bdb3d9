"""What the doctor examines, and what it finds."""

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
    """One thing that is wrong. `code` is stable; `remedy` says what to do."""

    code: str
    severity: Severity
    message: str
    remedy: str
    namespace: str | None = None
    facts: dict[str, Any] = msgspec.field(default_factory=dict)


def error_of(code: str, message: str, remedy: str, *, namespace: str | None = None, **facts: Any) -> Finding:
    """A finding that makes the report fail."""
    return Finding(
        code=code, severity="error", message=message, remedy=remedy, namespace=namespace, facts=facts
    )


def warn_of(code: str, message: str, remedy: str, *, namespace: str | None = None, **facts: Any) -> Finding:
    """A finding that leaves the report good."""
    return Finding(
        code=code, severity="warning", message=message, remedy=remedy, namespace=namespace, facts=facts
    )


@dataclass(frozen=True, kw_only=True)
class Patient:
    """One opened installation. `path` is the store's file, if it is one."""

    store: Store
    bell: BellHealth
    clock: Clock
    settings: Settings
    namespaces: tuple[str, ...]
    path: Path | None = None
    least_free_bytes: int = 256 * 1024 * 1024
    facts: dict[str, Any] = field(default_factory=dict)
    """The database's own version and settings."""
    connect_stream: Connect | None = None
    """Connects to the server that carries the turns, if there is one."""

    async def is_blocked(self) -> bool:
        """Whether a process keeps all others from writing, so that no heartbeat and no tick can be stored."""
        if self.facts.get("blocked_by") is not None:
            return True
        return any(holder.hides_life for holder in await self.store.lock_holders())
