"""Whether a PMO, the supervisor process, ticks; a worker logs when none has for three intervals.

Without one, no clock fires and no turn is taken from a dead worker. Any PMO may take over at any moment,
because all of them act on what the store says.
"""

from __future__ import annotations

import logging

from endwell.model.moments import SECOND
from endwell.policy.limits import LATE_INTERVALS

log = logging.getLogger(__name__)


class PmoLiveness:
    """Checked at every tick of the worker's watchdog."""

    def __init__(self, actor: str, *, interval_seconds: float) -> None:
        self._actor = actor
        self._patience = int(LATE_INTERVALS * interval_seconds * SECOND)
        self._since: int | None = None
        self.last_tick: int | None = None
        self.is_overseen = True

    def check(self, now: int, last_tick: int | None) -> None:
        """Compare with the last tick of any PMO; the first check gives a PMO time to start."""
        if self._since is None:
            self._since = now
        self.last_tick = last_tick
        ticked_at = max(last_tick or 0, self._since)
        is_late = now - ticked_at > self._patience
        if is_late == self.is_overseen:
            self._log_change(is_late, (now - ticked_at) / SECOND)
        self.is_overseen = not is_late

    def _log_change(self, is_late: bool, seconds: float) -> None:
        if is_late:
            log.error(
                "%s: no PMO has ticked for %.1f s: no clock fires, nothing is reclaimed; start `endwell pmo`",
                self._actor,
                seconds,
            )
        else:
            log.warning("%s: a PMO ticks again", self._actor)
