"""Messages that the outside will never take: a person has them left out, and it stays written down who did.

The relay itself never skips anything. Each word of a person is a row of its own beside the relay's cursor.
"""

from __future__ import annotations

from typing import Final

from endwell.model.commands import TakeCursor
from endwell.model.cursor import Cursor
from endwell.store.contract import Store

PREFIX: Final = "relay.skip:"


async def skips(store: Store, namespace: str) -> dict[str, Cursor]:
    """What is to be left out, by event: `holder` said so at `updated_at`."""
    found = await store.cursors_named(namespace, PREFIX)
    return {row.name.removeprefix(PREFIX): row for row in found}


def skipping(event_id: str, *, command_id: str, namespace: str, by: str, position: str) -> TakeCursor:
    """The command that says so."""
    about = {"command_id": command_id, "namespace": namespace, "actor": by, "holder": by}
    return TakeCursor(**about, name=f"{PREFIX}{event_id}", lease=0, start=position)
