"""The inbox as the supervisor sees it: ring for what waits for long, lay aside what nobody can get.

A ring changes nothing. A message whose channel nobody can tell is skipped once it is old enough, an offer of
a turn that is over at once, and the task's log says so. A `stop` that was not carried out (its sender died
right after the commit) is carried out here: what follows may end tasks, which a worker's watchdog never does.
"""

from __future__ import annotations

import logging
from typing import Any

from endwell.model import commands as c
from endwell.model.names import by_channel
from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.settings import PmoSettings as PmoSettings
from endwell.store.contract import Store
from endwell.store.reads import PendingRow

log = logging.getLogger(__name__)

PAGE = 200
PAGES = 50
"""Most pages of one tick; what is left is found by the next one."""
UNHURRIED = 5 * SECOND
"""How old a message must be that is not rung for because ringing is switched off."""
TURN_OVER = "turn_over"
MISSING_CHANNEL = "missing_channel"


class InboxWatch:
    """`run_once()` looks at everything that has been pending for long."""

    def __init__(
        self, store: Store, runtime: Runtime, settings: PmoSettings, *, namespace: str, actor: str
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._namespace = namespace
        self._actor = actor
        self._wakeup = int(settings.pending_wakeup_seconds * SECOND)
        self._skip = int(settings.pending_wakeup_skip_seconds * SECOND)
        self.woken = 0
        self.skipped = 0

    @property
    def patience(self) -> int:
        """How long a message may be pending before anybody looks at it, in microseconds."""
        return self._wakeup if self._wakeup > 0 else UNHURRIED

    async def run_once(self) -> int:
        """How many agents were rung for, by each of their channels."""
        now = await self._store.now()
        before = now - self.patience
        agents: set[str] = set()
        after = (-1, "")
        for _ in range(PAGES):
            page = await self._store.long_pending(self._namespace, before, after, PAGE)
            if self._wakeup > 0:
                targets = {(row.agent, row.target_channel) for row in page}
                agents |= {by_channel(agent, channel) for agent, channel in targets if channel is not None}
            await self._settle(page, now)
            if len(page) < PAGE:
                break
            after = (page[-1].created_at, page[-1].id)
        if agents:
            await self._store.one(c.WakeAgents(agents=tuple(sorted(agents)), **self._about()))
        self.woken += len(agents)
        return len(agents)

    async def _settle(self, page: list[PendingRow], now: int) -> None:
        """Stops that were left behind, and messages without a channel that have waited for too long."""
        commands: list[c.Command] = []
        for row in page:
            if row.message_type == "stop" and row.task_id is not None:
                settle = c.SettleChildren(parent_id=row.task_id, message_id=row.id, **self._about())
                commands.append(settle)
            elif row.is_of_a_past_turn:
                commands.append(self._skip_for(row, TURN_OVER))
            elif row.target_channel is None:
                commands += self._skipping(row, now)
        if commands:
            await self._store.commit(commands)

    def _skipping(self, row: PendingRow, now: int) -> list[c.Command]:
        if self._skip <= 0 or row.created_at > now - self._skip:
            log.warning("message %s to %s has no channel", row.id, row.agent, extra={"task_id": row.task_id})
            return []
        return [self._skip_for(row, MISSING_CHANNEL)]

    def _skip_for(self, row: PendingRow, why: str) -> c.Command:
        self.skipped += 1
        if row.task_id is None or row.task_status is None:  # there is no log that could tell
            log.error("message %s to %s is skipped: %s", row.id, row.agent, why)
            return c.CloseMessages(message_ids=(row.id,), why=why, **self._about())
        return c.SkipMessage(task_id=row.task_id, message_id=row.id, why=why, **self._about())

    def _about(self) -> dict[str, Any]:
        return {
            "command_id": self._runtime.ids.new(),
            "namespace": self._namespace,
            "actor": self._actor,
        }
