"""The place outside that the relay tells: it keeps what it was told, and takes it well or badly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from endwell.pmo.relay.messages import Outgoing
from endwell.pmo.relay.sink import SinkError
from endwell.runtime.base import Runtime

Manner = Literal["", "refused", "half", "unheard", "silent", "broken"]
"""`refused`: nothing is taken. `half`: some, and that is said. `unheard`: all, and nobody hears that.
`silent`: nothing, and nobody hears that. `broken`: some, and the line breaks in a way of its own."""
PATIENCE_SECONDS: Final = 10.0

Told = Callable[[str, Outgoing], None]


@dataclass
class Receiver:
    """`manner` decides how each batch is taken; `on_told` hears of every message that was."""

    manner: Callable[[str, Sequence[Outgoing]], Manner] = lambda owner, messages: ""
    on_told: Told = lambda owner, message: None
    after_told: Callable[[str], None] = lambda owner: None
    bodies: dict[str, bytes] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)

    def take(self, owner: str, messages: Sequence[Outgoing]) -> None:
        """Keep these."""
        for message in messages:
            self.on_told(owner, message)
            self.bodies.setdefault(message.id, message.body)
            self.times[message.id] += 1
        if messages:
            self.after_told(owner)


class SimulatedSink:
    """One process's way to the receiver."""

    shown = "simulated receiver"

    def __init__(self, receiver: Receiver, runtime: Runtime, owner: str) -> None:
        self._receiver = receiver
        self._runtime = runtime
        self._owner = owner

    async def send(self, messages: Sequence[Outgoing]) -> None:
        await self._runtime.sleep(0)
        manner = self._receiver.manner(self._owner, messages)
        taken = {"refused": 0, "silent": 0, "half": len(messages) // 2, "broken": len(messages) // 2}
        count = taken.get(manner, len(messages))
        self._receiver.take(self._owner, messages[:count])
        if manner in ("unheard", "silent"):
            await self._runtime.sleep(PATIENCE_SECONDS)
        await self._runtime.sleep(0)
        if manner == "broken":
            raise OSError("the line broke")
        if manner:
            raise SinkError(manner, sent=count if manner == "half" else 0)

    async def close(self) -> None:
        """There is nothing to let go of."""
