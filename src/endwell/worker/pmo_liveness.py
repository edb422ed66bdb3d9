"""Whether anybody supervises: a worker looks, and says so when no PMO has ticked for three intervals.

Without one, no clock fires and no turn is taken from a dead worker. Any PMO, anywhere, may take over at any
moment: nothing has to be handed on, since all of them act on what the store says.
"""

from __future__ import annotations

import logging

from endwell.policy.limits import LATE_INTERVALS, SECOND

log = logging.getLogger(__name__)


class PmoLiveness:
    """Told at every tick of the worker's watchdog when a PMO last ticked."""

    def __init__(self, actor: str, *, interval_seconds: float) -> None:
        self._actor = actor
        self._patience = int(LATE_INTERVALS * interval_seconds * SECOND)
        self._since: int | None = None
        self.last_tick: int | None = None
        self.is_overseen = True

    def look(self, now: int, last_tick: int | None) -> None:
        """Whoever has just started gives the supervisors time to start as well."""
        if self._since is None:
            self._since = now
        self.last_tick = last_tick
        heard = max(last_tick or 0, self._since)
        late = now - heard > self._patience
        if late == self.is_overseen:
            self._tell(late, (now - heard) / SECOND)
        self.is_overseen = not late

    def _tell(self, late: bool, seconds: float) -> None:
        if late:
            log.error(
                "%s: no PMO has ticked for %.1f s: no clock fires, nothing is reclaimed; start `endwell pmo`",
                self._actor,
                seconds,
            )
        else:
            log.warning("%s: a PMO ticks again", self._actor)
