"""Effect stores: where the result of an effect is put before anything is appended to the log.

By default there is none: result and record are one commit in the same database. A foreign store survives
what happens to that database; an effect found in it is caught up with and never executed again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class EffectStore(ABC):
    """Results of effects by key. The first result under a key stays; `StoreError` when it cannot be used."""

    @abstractmethod
    async def get(self, key: str) -> bytes | None:
        """The result, as canonical JSON, if the effect took place."""

    @abstractmethod
    async def put(self, key: str, content: bytes, attempt_id: str) -> None:
        """Keep a result; `attempt_id` says who executed the effect."""

    async def close(self) -> None:
        """Let go of connections; the next use makes new ones."""
        return


class MemoryEffectStore(EffectStore):
    """For tests, and for effects that need not outlive the process."""

    def __init__(self) -> None:
        self.results: dict[str, tuple[bytes, str]] = {}

    async def get(self, key: str) -> bytes | None:
        found = self.results.get(key)
        return found[0] if found is not None else None

    async def put(self, key: str, content: bytes, attempt_id: str) -> None:
        self.results.setdefault(key, (content, attempt_id))
