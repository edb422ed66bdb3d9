"""The door: every state change of the system is a command that passes here.

Sans-I/O. A driver asks for the rows that the commands need (`wanted_rows`), reads them, has the commands
decided (`outcome`), and writes the result, all in one transaction. The machine, which is pure,
enforces fencing, one end for each task, counters, and the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from endwell.errors import EndwellError
from endwell.machine.table import HOLDER, TABLE
from endwell.model import commands as c
from endwell.policy.limits import Limits
from endwell.store.batch import Batch
from endwell.store.batch_commands import BATCH_TABLE
from endwell.store.command_rows import WANTED, want_task
from endwell.store.rows import Outcome, Reply, Rows, Wanted


def wanted_rows(commands: Sequence[Any], *, careful: bool = False) -> Wanted:
    """The rows that these commands need.

    A submission brings a new id, so its task is not read. With `careful` it is: the database has said
    that the id is taken, because the same command was sent twice.
    """
    want = Wanted()
    for command in commands:
        rule = TABLE.get(type(command))
        if rule is None:
            reads = BATCH_TABLE[type(command)].reads if type(command) in BATCH_TABLE else ()
        else:
            reads = rule.reads
            if isinstance(command, c.Submit):
                _want_submitted(want, command, careful)
            else:
                want_task(want, command, command.attempt_id if rule.by == HOLDER else None)
        for read in reads:
            WANTED[read](want, command)
    return want


def _want_submitted(want: Wanted, command: c.Submit, careful: bool) -> None:
    if command.key is not None:
        want.keys.add((command.namespace, command.key))
    elif careful:
        want_task(want, command)


def outcome(commands: Sequence[c.Command], rows: Rows, now: int, limits: Limits) -> Outcome:
    """Decide the commands in order; each sees the changes of those before. A bad command fails alone."""
    batch = Batch(rows, now, limits)
    replies = [_reply(batch, command) for command in commands]
    return Outcome(replies, batch.work.collect_writes(), batch.work.bells)


def _reply(batch: Batch, command: c.Command) -> Reply:
    try:
        return _apply(batch, command)
    except EndwellError as error:
        return Reply(refusal=error)
    except Exception as error:  # a defect in one command must not fail its neighbours
        wrapped = EndwellError(f"{type(error).__name__}: {error}")
        wrapped.__cause__ = error
        return Reply(refusal=wrapped)


def _apply(batch: Batch, command: Any) -> Reply:
    kind = type(command)
    if kind not in TABLE:
        if kind not in BATCH_TABLE:
            raise TypeError(f"no such command: {kind.__name__}")
        return BATCH_TABLE[kind].then(batch, command)
    if isinstance(command, c.Submit) and command.key is not None:
        task = batch.work.task_by_key(command.namespace, command.key)
    else:
        task = batch.work.task(command.namespace, command.task_id)
    return batch.decide(task, command)
