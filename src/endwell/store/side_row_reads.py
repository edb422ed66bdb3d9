"""Reads the rows of approvals, dead letters and waits, to be compared with the log (`beside.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from endwell.model.approval import ApprovalRow
from endwell.store.positions import Positions
from endwell.store.side_rows import DeadLetter, KeptWait, Key

PAGE: Final = 500


class BesideReads(Positions):
    """Rows beside those of tasks, in pages, so that memory stays the same however many there are."""

    async def rows_beside(self, namespace: str, after: str, before: str) -> AsyncIterator[tuple[Key, Any]]:
        """Those whose ids lie behind one and before another; ids begin with that of their task."""
        last = after
        while rows := await self._rows("approvals_between", namespace, last, before, PAGE):
            last = rows[-1][0]
            for row in rows:
                yield ("approval", row[0]), ApprovalRow(*row)
        last = after
        while rows := await self._rows("dead_letters_between", namespace, last, before, PAGE):
            last = rows[-1][0]
            for row in rows:
                yield ("dead_letter", row[0]), DeadLetter(*row)
        last, call = after, ""
        while rows := await self._rows("waits_between", namespace, last, before, call, PAGE):
            last, call = rows[-1][:2]
            for row in rows:
                yield ("wait", *row[:2]), KeptWait(*row)
