"""Which event loop to run on: uvloop where it is installed, asyncio's own otherwise."""

from __future__ import annotations

import asyncio
import importlib


def new_loop(*, fast: bool = True) -> asyncio.AbstractEventLoop:
    """A new event loop; `fast=False` stays with asyncio's even if uvloop is there."""
    if fast:
        try:
            loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
            return loop
        except ImportError:
            pass
    return asyncio.new_event_loop()
