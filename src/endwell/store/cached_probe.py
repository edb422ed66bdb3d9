"""Questions that are asked again and again, and put to the store only when it may have another answer.

Where a store has no stamps, that is every time.
"""

from __future__ import annotations

from endwell.store.contract import Store
from endwell.store.probe import Probe, ProbeResult


class CachedProbe:
    """`due` names the answer that says when time alone changes the others; None there is never."""

    def __init__(self, store: Store, *asked: Probe, due: str) -> None:
        self._store = store
        self.asked = asked
        self._due = due
        self.known: ProbeResult | None = None

    async def ask(self) -> ProbeResult:
        """The answers as of now."""
        self.known = await self._still_known() or await self._store.glance(*self.asked)
        return self.known

    def learn(self, seen: ProbeResult) -> None:
        """Somebody else has asked, among other things."""
        self.known = seen

    def forget(self) -> None:
        """Ask in any case."""
        self.known = None

    async def _still_known(self) -> ProbeResult | None:
        known, stamp = self.known, self._store.stamp()
        if known is None or stamp is None or stamp != known.stamp:
            return None
        now, due = await self._store.now(), known[self._due]
        has_come = due is not None and due <= now
        return None if has_come or now < known.now else ProbeResult(now, known, stamp)
