"""The command table: every command has one rule, and every name of rows is known to the door."""

from __future__ import annotations

from typing import Final

from endwell.machine.table import TABLE
from endwell.model import commands as c
from endwell.store.batch_commands import BATCH_TABLE
from endwell.store.command_rows import SHOWN, WANTED

FROM_CHILD: Final = {
    c.Progress,
    c.Repeat,
    c.HearNudges,
    c.StartStep,
    c.RecordStep,
    c.KeepDraft,
    c.IntendEffect,
    c.FinishEffect,
    c.DoubtEffect,
    c.SettleEffect,
    c.Block,
}
"""Listed again here: a child process is not trusted, so no command joins these by a slip in the table."""
BASES: Final = {c.Command, c.TaskCommand, c.AttemptCommand}


def test_every_command_has_exactly_one_rule() -> None:
    commands = {kind for kind in vars(c).values() if isinstance(kind, type) and issubclass(kind, c.Command)}

    assert set(TABLE) | set(BATCH_TABLE) == commands - BASES
    assert not set(TABLE) & set(BATCH_TABLE)


def test_every_rule_reads_rows_that_the_door_knows() -> None:
    for rule in TABLE.values():
        assert set(rule.reads) <= SHOWN.keys() & WANTED.keys()
    for batch_rule in BATCH_TABLE.values():
        assert set(batch_rule.reads) <= WANTED.keys()


def test_a_child_process_may_send_exactly_the_commands_of_a_turn_at_work() -> None:
    assert {kind for kind, rule in TABLE.items() if rule.from_child} == FROM_CHILD
