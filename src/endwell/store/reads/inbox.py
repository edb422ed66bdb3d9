"""Questions about what tasks wait for: messages, tool calls, approvals, and verdicts on dead letters."""

from __future__ import annotations

import msgspec

from endwell.errors import NotFound
from endwell.model.approval import ApprovalRow
from endwell.model.message import InboxRow, Message
from endwell.model.wait import Wait
from endwell.store.queries import NamedQueries
from endwell.store.reads.side_rows import DeadLetter


class OpenCall(msgspec.Struct, frozen=True):
    """A tool call without an answer."""

    tool_call_id: str
    task_id: str
    tool: str
    deadline: int
    created_at: int


class PendingRow(msgspec.Struct, frozen=True):
    """A message that has been pending for long, with facts of its task."""

    id: str
    agent: str
    message_type: str
    channel: str | None
    task_id: str | None
    turn_id: str | None
    created_at: int
    task_channel: str | None
    open_turn_id: str | None
    task_status: str | None

    @property
    def is_of_a_past_turn(self) -> bool:
        """Whether it offers a turn that is over, which no worker will take."""
        return self.message_type == "turn" and self.turn_id != self.open_turn_id

    @property
    def target_channel(self) -> str | None:
        """The channel to ring: an offered turn names it, else it is that of the task's open turn."""
        if self.channel is not None or self.message_type == "turn":
            return self.channel
        return self.active_channel

    @property
    def active_channel(self) -> str | None:
        """The channel of its task's open turn, if there is one."""
        return self.task_channel if self.open_turn_id is not None else None


class InboxReads(NamedQueries):
    """Messages by task and age; waits; approvals; dead letters."""

    async def pending_messages(self, namespace: str, task_id: str) -> list[Message]:
        """The messages that wait in the inbox for one task, oldest first."""
        return await self._read_all(Message, "pending_messages", namespace, task_id)

    async def messages_page(self, namespace: str, after: str, limit: int) -> list[Message]:
        """Messages that wait to be consumed, by id."""
        return await self._read_all(Message, "messages_page", namespace, after, limit)

    async def inbox_page(
        self,
        namespace: str,
        *,
        status: str | None = None,
        agent: str | None = None,
        task_id: str | None = None,
        message_type: str | None = None,
        before: tuple[int, str] | None = None,
        limit: int = 50,
    ) -> list[InboxRow]:
        """Messages, newest first; `before` is (created_at, id) of the last one of the previous page."""
        at, message_id = before or (None, None)
        wanted = (status, agent, task_id, message_type, at, message_id, limit)
        return await self._read_all(InboxRow, "inbox_page", namespace, *wanted)

    async def inbox_row(self, namespace: str, message_id: str) -> InboxRow:
        found = await self._read_first(InboxRow, "inbox_row", namespace, message_id)
        if found is None:
            raise NotFound(f"there is no message {message_id}", code="no_such_message")
        return found

    async def long_pending(
        self, namespace: str, before: int, after: tuple[int, str], limit: int
    ) -> list[PendingRow]:
        """Messages pending since before that moment, oldest first, after (created_at, id)."""
        return await self._read_all(PendingRow, "long_pending", namespace, before, *after, limit)

    async def stale_messages(self, namespace: str, before: int, now: int, limit: int) -> list[str]:
        """Messages processed since before that moment by an attempt that no longer lives."""
        return await self._read_column("stale_messages", namespace, before, now, limit)

    async def undelivered_messages(
        self, namespace: str, before: int, limit: int
    ) -> list[tuple[Message, str, int]]:
        """Messages older than that which could be consumed now, with task status and failed deliveries."""
        rows = await self._rows("undelivered", namespace, before, limit)
        return [(Message(*row[:-2]), row[-2], row[-1]) for row in rows]

    async def skipped_count(self, namespace: str, since: int = 0) -> int:
        """How many messages could not be delivered since then."""
        return int(await self._read_value("skipped_count", namespace, since))

    async def pending_resumes(self, namespace: str, before: int, limit: int) -> list[tuple[str, str, int]]:
        """Answers in the resume ledger whose turn waits: message, task, failed deliveries."""
        rows = await self._rows("pending_resumes", namespace, before, limit)
        return [(row[0], row[1], row[2]) for row in rows]

    async def answers_waiting(self, namespace: str, now: int, limit: int) -> list[tuple[str, str, str]]:
        """Answers to overdue waits that no message reported: task, call, card."""
        rows = await self._rows("answers_waiting", namespace, now, limit)
        return [(row[0], row[1], row[2]) for row in rows]

    async def due_waits(self, namespace: str, now: int, limit: int) -> list[str]:
        """Suspended tasks with an overdue wait."""
        return await self._read_column("due_waits", namespace, now, limit)

    async def open_waits(self, namespace: str, turn_id: str, limit: int) -> list[Wait]:
        """The open waits of a turn, in the order of its calls."""
        return await self._read_all(Wait, "open_waits_of_turn", namespace, turn_id, limit)

    async def open_calls(
        self, namespace: str, *, task_id: str | None = None, limit: int = 50
    ) -> list[OpenCall]:
        """Tool calls that suspended turns wait for."""
        return await self._read_all(OpenCall, "open_calls", namespace, task_id, limit)

    async def approval(self, namespace: str, approval_id: str) -> ApprovalRow:
        found = await self._read_first(ApprovalRow, "approval", namespace, approval_id)
        if found is None:
            raise NotFound(f"there is no approval {approval_id}", code="no_such_approval")
        return found

    async def approvals_page(
        self,
        namespace: str,
        *,
        only_open: bool = True,
        task_id: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> list[ApprovalRow]:
        """Approvals by id; `after` is the last id of the previous page."""
        wanted = (int(only_open), task_id, after, limit)
        return await self._read_all(ApprovalRow, "approvals_page", namespace, *wanted)

    async def dead_letter(self, namespace: str, task_id: str) -> DeadLetter:
        found = await self._read_first(DeadLetter, "dead_letter", namespace, task_id)
        if found is None:
            raise NotFound(f"there is no dead letter {task_id}", code="no_such_dead_letter", task_id=task_id)
        return found

    async def dead_letters_page(
        self,
        namespace: str,
        *,
        status: str | None = None,
        fingerprint: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[DeadLetter]:
        """Dead letters, newest first."""
        wanted = (status, fingerprint, before, limit)
        return await self._read_all(DeadLetter, "dead_letters_page", namespace, *wanted)

    async def letters_changed(self, namespace: str, since: int, after: str, limit: int) -> list[DeadLetter]:
        """Dead letters opened or closed since then, by change; `after`: the last id seen of that moment."""
        return await self._read_all(DeadLetter, "letters_changed", namespace, since, after, limit)
