"""Hints that there is something to look at. The truth is in the store; a bell only saves waiting.

Any ring may be lost, doubled or late, and with every bell dead polling still finds the work.
"""

from endwell.doorbell.contract import EVERYTHING, BellHealth, Doorbell, Unsubscribe, is_rung
from endwell.doorbell.local import LocalDoorbell

__all__ = ["EVERYTHING", "BellHealth", "Doorbell", "LocalDoorbell", "Unsubscribe", "is_rung"]
