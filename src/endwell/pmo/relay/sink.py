"""Where messages go. A sink either has them all, or says how far it came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from endwell.errors import EndwellError
from endwell.pmo.relay.messages import Outgoing


class SinkError(EndwellError):
    """The other side did not take a message; `sent` of them it has. `at` is which one, if that is known."""

    code = "relay_sink"

    def __init__(self, message: str, *, sent: int = 0, at: int | None = None) -> None:
        super().__init__(message)
        self.sent = sent
        self.at = at


class Sink(Protocol):
    """One place outside. It connects when it is first used, and again after a failure."""

    shown: str
    """What it is called in logs: without anything secret."""

    async def send(self, messages: Sequence[Outgoing]) -> None:
        """Returns when the other side has all of them; raises when it does not."""

    async def close(self) -> None:
        """Let go of the connection."""
