"""Reads the log for followers that tell what each command did: a command's events are never parted."""

from __future__ import annotations

from endwell.store.contract import Store
from endwell.store.log import Logged


async def next_page(store: Store, namespace: str, position: str, size: int) -> list[Logged]:
    """The events after a position. A command whose events do not fit is left for the next page as a whole."""
    page = await store.events_after(namespace, position, size)
    if len(page) < size:
        return page
    end, last = size, page[-1].event.command_id
    while end and page[end - 1].event.command_id == last:
        end -= 1
    return page[:end] or await store.events_after(namespace, position, 100 * size)
