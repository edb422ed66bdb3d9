"""What the demo itself did, line by line in a file: all that the reader learns from the demo's process."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


class Submitted(msgspec.Struct, frozen=True, tag="submitted"):
    """These submissions were acknowledged."""

    ids: list[str]


class KilledRecord(msgspec.Struct, frozen=True, tag="killed"):
    """A process was killed; `session_id` is the one it had in the store before, `at` the store's time."""

    pid: int
    role: str
    name: str
    session_id: str | None
    at: int


class Frozen(msgspec.Struct, frozen=True, tag="frozen"):
    """A worker was stopped, and woken after its tasks had been taken from it."""

    pid: int
    name: str
    session_id: str
    at: int
    woken_at: int


Entry = Submitted | KilledRecord | Frozen
_decoder = msgspec.json.Decoder(Entry)


class Journal:
    """Appends entries to a file of its owner's."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, entry: Entry) -> None:
        """One line, on its way to the disk before this returns."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(entry) + b"\n")
        finally:
            os.close(descriptor)

    def read(self) -> list[Entry]:
        """Everything written so far."""
        if not self.path.exists():
            return []
        return [_decoder.decode(line) for line in self.path.read_bytes().splitlines()]
