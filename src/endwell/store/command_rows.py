"""The rows that commands need: how the door asks for them, and how it shows them to a decision.

`WANTED` says for each name of the command table which rows the driver must read, `SHOWN` what of them a
decision about one task is shown. The names defined here are for commands of `batch_commands`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from endwell.machine import table as t
from endwell.machine.sessions import is_live
from endwell.model import commands as c
from endwell.model.task import Task
from endwell.store.log import effect_keys
from endwell.store.rows import Wanted
from endwell.store.working_set import WorkingSet

TASK: Final = "task"  # the task of an import
ADOPTED: Final = "adopted"  # the effects in imported events
REPORTED: Final = "reported"  # the task that a foreign worker reports on
HELD: Final = "held"  # the turns that a session holds
LOST: Final = "lost"  # the session that a new one replaces, and the turns it holds
READY: Final = "ready"  # tasks that can be offered or claimed
CHILDREN: Final = "children"  # the live children of a task
CURSOR: Final = "cursor"

Fields = dict[str, Any]
"""Fields of `Evidence`."""


def want_task(want: Wanted, command: c.TaskCommand, attempt: str | None = None) -> None:
    """Ask for the command's task. `attempt`: the only sender of the batch for this task, if it holds it."""
    key = (command.namespace, command.task_id)
    want.tasks.add(key)
    if want.attempts.setdefault(key, attempt) != attempt:
        want.attempts[key] = None


def _row_named_by(rows: str, field: str) -> Callable[[Wanted, Any], None]:
    """Ask for the row that a field of the command names."""
    rows_of, name_of = attrgetter(rows), attrgetter(field)

    def want_row(want: Wanted, command: c.Command) -> None:
        rows_of(want).add((command.namespace, name_of(command)))

    return want_row


def _effect_key(command: Any) -> str | None:
    key: str | None = command.effect_key if type(command) is c.Block else command.key
    return key


def _want_effect(want: Wanted, command: Any) -> None:
    key = _effect_key(command)
    if key is not None:
        want.effects.add((command.namespace, key))


def _want_message(want: Wanted, command: c.Deliver | c.SkipMessage) -> None:
    want.messages[command.namespace, command.message_id] = (command.namespace, command.task_id)


def _want_wait(want: Wanted, command: c.TaskCommand) -> None:
    task = (command.namespace, command.task_id)
    match command:
        case c.Signal():
            want.signals.append((task, command.name))
        case c.Answer(tool_call_id=call) | c.Approve(approval_id=str(call)) | c.Reject(approval_id=str(call)):
            want.answers.add((task, call))


def _want_held(want: Wanted, command: c.Heartbeat | c.CloseSession) -> None:
    if isinstance(command, c.Heartbeat) or command.hands_back:
        want.held_by.add((command.namespace, command.session_id))


def _want_lost(want: Wanted, command: c.OpenSession) -> None:
    if command.lost is not None:
        want.sessions.add((command.namespace, command.lost))
        want.held_by.add((command.namespace, command.lost))


def _want_ready(want: Wanted, command: c.ClaimNext | c.DispatchNext) -> None:
    want.ready.append(command)


def _want_reported(want: Wanted, command: c.ForeignReport) -> None:
    want_task(want, command.report)


def _want_adopted(want: Wanted, command: c.Adopt) -> None:
    want.effects |= {(command.namespace, key) for key in effect_keys(command.events)}


WANTED: Final[dict[str, Callable[[Wanted, Any], None]]] = {
    t.AGENT_RULES: _row_named_by("rules", "agent"),
    t.REPLAYED: _row_named_by("replays", "task_id"),
    t.START: _row_named_by("starts", "task_id"),
    t.SESSION: _row_named_by("sessions", "session_id"),
    t.EFFECT: _want_effect,
    t.INBOX: _row_named_by("inbox", "task_id"),
    t.MESSAGE: _want_message,
    t.WAIT: _want_wait,
    t.NEXT_WAITS: _row_named_by("calls", "task_id"),
    TASK: want_task,
    ADOPTED: _want_adopted,
    REPORTED: _want_reported,
    HELD: _want_held,
    LOST: _want_lost,
    READY: _want_ready,
    CHILDREN: _row_named_by("children", "parent_id"),
    CURSOR: _row_named_by("cursors", "name"),
}


def _show_agent_rules(work: WorkingSet, task: Task | None, command: c.Submit) -> Fields:
    rules = work.rules(command.namespace, command.agent)
    return {"rules": rules} if rules else {}


def _show_replayed(work: WorkingSet, task: Task | None, command: c.Replay) -> Fields:
    rules = () if task is None else work.rules(task.namespace, task.agent)
    return {"rules": rules, "approval": work.approval(command.namespace, command.task_id)}


def _show_start(work: WorkingSet, task: Task | None, command: c.TaskCommand) -> Fields:
    """The driver reads the holder of the agent key with every task that has one."""
    if task is None:
        return {}
    fields: Fields = {}
    holder = work.key_holder(task)
    if holder is not None:
        fields["key_holder"] = holder
    rules = work.rules(task.namespace, task.agent) if task.started_at is None else ()
    if rules:
        fields |= {"rules": rules, "approval": work.approval(task.namespace, task.id)}
    return fields


def _show_session(work: WorkingSet, task: Task | None, command: c.Claim | c.Reclaim) -> Fields:
    session = work.session(command.namespace, command.session_id)
    return {"session": session, "session_is_live": is_live(session, work.now)}


def _show_effect(work: WorkingSet, task: Task | None, command: c.TaskCommand) -> Fields:
    key = _effect_key(command)
    if key is None:
        return {}
    return {
        "effect": work.effect(command.namespace, key),
        "restored_at": work.restored_at(command.namespace),
    }


def _show_inbox(work: WorkingSet, task: Task | None, command: c.TaskCommand) -> Fields:
    return {"messages": work.messages(command.namespace, command.task_id)}


def _show_message(work: WorkingSet, task: Task | None, command: c.Deliver | c.SkipMessage) -> Fields:
    message = work.message(command)
    if message is None:
        return {}
    return {"messages": (message,), "waits": work.waits.of_message(task, message)}


def _show_wait(work: WorkingSet, task: Task | None, command: c.TaskCommand) -> Fields:
    return {"waits": work.waits.of_command(task, command)}


def _show_next_waits(work: WorkingSet, task: Task | None, command: c.TaskCommand) -> Fields:
    calls = work.calls(command.namespace, command.task_id)
    waits, beyond = work.waits.next_ones(task)
    return {"calls": calls, "waits": waits, "beyond": beyond}


SHOWN: Final[dict[str, Callable[[WorkingSet, Task | None, Any], Fields]]] = {
    t.AGENT_RULES: _show_agent_rules,
    t.REPLAYED: _show_replayed,
    t.START: _show_start,
    t.SESSION: _show_session,
    t.EFFECT: _show_effect,
    t.INBOX: _show_inbox,
    t.MESSAGE: _show_message,
    t.WAIT: _show_wait,
    t.NEXT_WAITS: _show_next_waits,
}
