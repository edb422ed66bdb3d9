"""The contract of a sink: a sink takes all messages of a batch, or says how many it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from endwell.errors import EndwellError
from endwell.pmo.relay.messages import Outgoing


class SinkError(EndwellError):
    """The receiver did not take a message."""

    code = "relay_sink"

    def __init__(self, message: str, *, sent: int = 0, at: int | None = None) -> None:
        """`sent`: how many messages it took; `at`: the index of the refused one, if known."""
        super().__init__(message)
        self.sent = sent
        self.at = at


class Sink(Protocol):
    """One receiver. It connects on first use, and again after a failure."""

    shown: str
    """Its name in logs, without secrets."""

    async def send(self, messages: Sequence[Outgoing]) -> None:
        """Return when the receiver has all messages; raise SinkError if it does not."""

    async def close(self) -> None:
        """Close the connection."""
