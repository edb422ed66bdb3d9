"""The installation of a seed: its settings and orders, with or without streams and a relay.

`installation_for(seed)` chooses an `Installation`, which is data. A kept history brings its own, so that it
does not change when the choice does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from endwell.runtime.virtual.scheduler import Dice
from endwell.settings import Settings, override
from endwell.testing import workload
from endwell.testing.cluster import Kind
from endwell.testing.faults.registry import Need

QueueKind = Literal["native", "redis"]
SECRET: Final = "hush-hush"  # noqa: S105 (the oracle looks for it in logs)
"""The password and the key of every simulated installation; no log may contain it."""

HOURS: Final = 2.0
ORDERS: Final = 45
CALM_SHARE: Final = 0.75
CREW: Final[dict[str, Kind]] = {
    "pmo1": "pmo",
    "w1": "worker",
    "w2": "worker",
    "w3": "worker",
    "desk": "client",
}
STREAMED_CREW: Final[dict[str, Kind]] = {**CREW, "f1": "foreign"}

BEATS: Final = (2.1, 3.0)
"""Heartbeats in a lease: the fewest that settings allow, and the default."""


@dataclass(frozen=True)
class Parts:
    """The optional parts of an installation."""

    queue: QueueKind
    relay: bool

    @property
    def has(self) -> tuple[Need, ...]:
        """The needs of faults that this installation meets."""
        queue: tuple[Need, ...] = ("queue",) if self.queue == "redis" else ()
        relay: tuple[Need, ...] = ("relay",) if self.relay else ()
        return ("", *queue, *relay)

    def choose_settings(self, dice: Dice, lease: float) -> dict[str, object]:
        """Choose the settings of these parts."""
        values: dict[str, object] = {}
        if self.queue == "redis":
            values = {
                "queue.kind": "redis",
                "redis.url": f"redis://:{SECRET}@simulated",
                "redis.block_seconds": 30.0,
                "pmo.dispatched_retry_seconds": 60.0,
                "pmo.dispatched_timeout_seconds": 150.0,
                "doorbell.kind": "store",
                "queue.VISIBILITY_TIMEOUT_S": lease,
                "queue.HEARTBEAT_INTERVAL_S": lease / dice.choice(BEATS),
                "queue.RECLAIM_INTERVAL_S": dice.choice((30.0, 60.0)),
                "queue.foreign_agents": ["*", "limited"],
            }
        if self.relay:
            values |= {
                "relay.kind": "webhook",
                "relay.url": f"https://endwell:{SECRET}@receiver.invalid/",
                "relay.secret": SECRET,
                "relay.batch": dice.choice((5, 100)),
                "relay.poll_seconds": 60.0,
            }
        return values


def parts_for(seed: int, queue: QueueKind | None = None, relay: bool | None = None) -> Parts:
    """Choose the parts of a seed: a fifth of all seeds have streams, half of them a relay."""
    dice = Dice(f"{seed}/parts")
    chosen: QueueKind = "redis" if dice.happens(1 / 5) else "native"
    has_relay = dice.happens(0.5)
    return Parts(queue or chosen, has_relay if relay is None else relay)


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a seed chooses before the history begins, except its faults."""

    seconds: float
    calm_after_seconds: float
    sticky: float
    crew: dict[str, Kind]
    settings: dict[str, Any]
    orders: tuple[workload.TaskOrder, ...]

    @property
    def parts(self) -> Parts:
        """Its optional parts."""
        return Parts(self.settings.get("queue.kind", "native"), "relay.kind" in self.settings)

    def all_settings(self) -> Settings:
        """Its own settings, and the defaults of all others."""
        return override(Settings(), self.settings, source="simulation")


def installation_for(
    seed: int,
    *,
    hours: float = HOURS,
    orders: int = ORDERS,
    queue: QueueKind | None = None,
    relay: bool | None = None,
) -> Installation:
    """Choose the installation of a seed."""
    parts = parts_for(seed, queue, relay)
    is_streamed = parts.queue == "redis"
    dice = Dice(f"{seed}/simulation")
    seconds = hours * 3600
    calm = seconds * CALM_SHARE
    return Installation(
        seconds=seconds,
        calm_after_seconds=calm,
        settings=settings_for(dice, parts),
        sticky=dice.choice((0.0, 0.5, 0.9)),
        crew=STREAMED_CREW if is_streamed else CREW,
        orders=workload.choose_orders(Dice(f"{seed}/orders"), orders, calm * 0.8, is_streamed=is_streamed),
    )


def settings_for(dice: Dice, parts: Parts) -> dict[str, object]:
    """Choose settings, from quick to slow and from patient to strict."""
    lease = dice.choice((90.0, 150.0, 200.0))
    values = {
        "human.owner": "ada",
        "human.remind_seconds": 600.0,
        "worker.lease_seconds": lease,
        "worker.heartbeat_seconds": lease / dice.choice(BEATS),
        "worker.poll_seconds": dice.choice((60.0, 120.0)),
        "worker.watchdog_interval_seconds": dice.choice((45.0, 90.0)),
        "worker.suspend_timeout_seconds": 60.0,
        "worker.drain_seconds": dice.choice((5.0, 60.0)),
        "worker.concurrency": dice.choice((3, 8, 20)),
        "worker.effect_timeout_seconds": dice.choice((15.0, 30.0)),
        "worker.step_timeout_seconds": 240.0,
        "pmo.watchdog_interval_seconds": dice.choice((20.0, 40.0)),
        "pmo.dispatched_retry_seconds": 30.0,
        "pmo.dispatched_timeout_seconds": 90.0,
        "pmo.active_reap_seconds": dice.choice((200.0, 400.0)),
        "pmo.crash_limit": dice.choice((3, 5)),
        "pmo.runaway_limit": dice.choice((10, 14)),
    }
    return {**values, **parts.choose_settings(dice, lease)}
