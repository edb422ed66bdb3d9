"""A simulated receiver of the relay: it keeps the messages, and accepts or refuses them by its manner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from endwell.pmo.relay.messages import Outgoing
from endwell.pmo.relay.sink import SinkError
from endwell.runtime.base import Runtime

Manner = Literal["", "refused", "half", "unheard", "silent", "broken"]
"""How a batch is taken. `refused`: not at all. `half`: in part, and the sender learns how much. `unheard`:
entirely, but the answer is lost. `silent`: not at all, and no answer. `broken`: in part, then the connection
breaks with another error."""
PATIENCE_SECONDS: Final = 10.0


@dataclass
class Receiver:
    """`manner` decides how each batch is taken; `on_message` is called before each message is kept."""

    manner: Callable[[str, Sequence[Outgoing]], Manner] = lambda owner, messages: ""
    on_message: Callable[[str, Outgoing], None] = lambda owner, message: None
    on_batch: Callable[[str], object] = lambda owner: None
    bodies: dict[str, bytes] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)

    def take(self, owner: str, messages: Sequence[Outgoing]) -> None:
        """Keep these messages."""
        for message in messages:
            self.on_message(owner, message)
            self.bodies.setdefault(message.id, message.body)
            self.times[message.id] += 1
        if messages:
            self.on_batch(owner)


class SimulatedSink:
    """One process's connection to the receiver."""

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
            raise OSError("the connection broke")
        if manner:
            raise SinkError(manner, sent=count if manner == "half" else 0)

    async def close(self) -> None:
        """Do nothing: there is no connection to close."""
