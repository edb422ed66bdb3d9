"""How often a message of the inbox is delivered before it is laid aside."""

from __future__ import annotations

from typing import Final

DELIVERY_RETRIES: Final = 5
"""Deliveries by watchdogs, after the first one by the commit that sent the message."""
DELIVERY_FAILED: Final = "delivery_failed"


def is_exhausted(retry_count: int) -> bool:
    """Whether so many deliveries came to nothing, by an error or by the end of their process."""
    return retry_count >= DELIVERY_RETRIES
