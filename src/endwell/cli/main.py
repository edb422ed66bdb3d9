"""The list of commands, and the entry that runs one."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from endwell.cli.base import failures
from endwell.cli.base.commands import CommandPlace, LazyGroup

_HELP = {
    "cli.init:init": "Create a starter project: an app with an agent, its test, settings.",
    "cli.submit:submit": "Submit a task.",
    "cli.submit:submit_many": "Submit many tasks: one JSON value per line.",
    "cli.task:task": "List, show, cancel, retry, unblock and assign tasks.",
    "cli.why:why": "Show where a task is, what moves it next, when it ends at the latest.",
    "cli.bounds:bounds": "Show by when and how often tasks of each agent run.",
    "cli.approval:approval": "What people are asked to agree to.",
    "cli.tool:tool": "Tool calls that wait for an answer.",
    "cli.signal:signal": "Send a task a signal by name.",
    "cli.inbox:inbox": "Messages to agents, and what became of them.",
    "cli.effect:effect": "Effects outside, and verdicts on unknown ones.",
    "cli.dlq:dlq": "Dead letters: failed tasks to replay or abandon.",
    "cli.events:events": "Read the log, verify it, export and import the record.",
    "cli.store:restored": "Record that the store was restored from a backup.",
    "cli.relay:relay": "What was sent to the receiver, and how to leave out what it refuses.",
    "cli.serve:worker": "Execute tasks until stopped.",
    "cli.serve:pmo": "Run a PMO (supervisor) until stopped: fire clocks, reclaim, dispatch.",
    "cli.serve:up": "Run a worker and a PMO in one process.",
    "cli.config:config": "Show the settings.",
    "cli.doctor:doctor": "Check everything that Endwell needs, and say how to mend what is wrong.",
    "cli.doctor:metrics": "Print figures for Prometheus.",
    "cli.store:migrate": "Bring the store's schema up to date.",
    "demo.command:demo": "Kill workers while tasks run, and count what was lost.",
    "cli.verify:verify": "Test the promises on this machine.",
    "selftest.command:selftest": "Test whether a server does what Endwell needs of it.",
    "bench.command:bench": "Measure speed on this machine.",
}
"""Where each command is, and the first line of its help."""
PLACES = {
    target.partition(":")[2].replace("_", "-"): CommandPlace(f"endwell.{target}", text)
    for target, text in _HELP.items()
}


@click.group(cls=LazyGroup, places=PLACES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="endwell", message="%(prog)s %(version)s")
def cli() -> None:
    """Every agent task ends. No side effect happens twice.

    \b
      endwell up --app hello:app
      endwell submit clerk '{"id": "42"}' --wait
      endwell task list --store sqlite:///hello.db

    Where a task is: `endwell why TASK`. What failed: `endwell dlq list`.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return its exit code. Every error is shown here, once."""
    style = failures.ErrorStyle.from_arguments(arguments)
    try:
        failures.refuse_invalid_text(arguments)
        with cli.make_context("endwell", list(arguments)) as ctx:
            code = cli.invoke(ctx)
        sys.stdout.flush()
    except BaseException as error:
        return failures.report_error(error, style)
    return code if isinstance(code, int) else 0
