"""The PMO's look at the inbox: ring for messages that have been pending for long, close undeliverable ones.

A ring changes nothing. A message without a channel is skipped once it is old enough, an offer of a turn
that is over at once; the task's log records both. A `stop` whose sender died right after its commit is
carried out here, because it may end tasks, which a worker's watchdog never does.
"""

from __future__ import annotations

import logging

from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.model.names import by_channel
from endwell.settings import PmoSettings
from endwell.store.actor import Actor
from endwell.store.reads.inbox import PendingRow

log = logging.getLogger(__name__)

PAGE = 200
PAGES = 50
"""Pages read in one tick; the next tick reads on."""
PATIENCE_WITHOUT_RINGS = 5 * SECOND
"""Age at which a message is looked at if ringing is switched off."""
TURN_OVER = "turn_over"
MISSING_CHANNEL = "missing_channel"


class InboxWatch:
    """Looks at messages that have been pending for long."""

    def __init__(self, actor: Actor, settings: PmoSettings) -> None:
        self._actor = actor
        self._ring_after = int(settings.pending_wakeup_seconds * SECOND)
        self._skip_after = int(settings.pending_wakeup_skip_seconds * SECOND)
        self.skipped = 0

    @property
    def patience_us(self) -> int:
        """Age in microseconds from which a pending message is looked at."""
        return self._ring_after if self._ring_after > 0 else PATIENCE_WITHOUT_RINGS

    async def run_once(self) -> int:
        """Look at every page once; return for how many agents and channels it rang."""
        now = await self._actor.store.now()
        agents: set[str] = set()
        after = (-1, "")
        for _ in range(PAGES):
            page = await self._actor.store.long_pending(
                self._actor.namespace, now - self.patience_us, after, PAGE
            )
            if self._ring_after > 0:
                agents |= _ring_targets(page)
            commands = [command for row in page if (command := self._command_for(row, now)) is not None]
            if commands:
                await self._actor.commit(commands)
            if len(page) < PAGE:
                break
            after = (page[-1].created_at, page[-1].id)
        if agents:
            await self._actor.send(c.WakeAgents, agents=tuple(sorted(agents)))
        return len(agents)

    def _command_for(self, row: PendingRow, now: int) -> c.Command | None:
        """Carry out a stop that was left behind, or close an undeliverable message."""
        if row.message_type == "stop" and row.task_id is not None:
            return self._actor.command(c.SettleChildren, parent_id=row.task_id, message_id=row.id)
        if row.is_of_a_past_turn:
            return self._skip_message(row, TURN_OVER)
        if row.target_channel is not None:
            return None
        if self._skip_after > 0 and row.created_at <= now - self._skip_after:
            return self._skip_message(row, MISSING_CHANNEL)
        log.warning("message %s to %s has no channel", row.id, row.agent, extra={"task_id": row.task_id})
        return None

    def _skip_message(self, row: PendingRow, why: str) -> c.Command:
        self.skipped += 1
        if row.task_id is None or row.task_status is None:  # there is no task whose log could record it
            log.error("message %s to %s is skipped: %s", row.id, row.agent, why)
            return self._actor.command(c.CloseMessages, message_ids=(row.id,), why=why)
        return self._actor.command(c.SkipMessage, task_id=row.task_id, message_id=row.id, why=why)


def _ring_targets(page: list[PendingRow]) -> set[str]:
    targets = {(row.agent, row.target_channel) for row in page}
    return {by_channel(agent, channel) for agent, channel in targets if channel is not None}
