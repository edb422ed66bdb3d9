"""The entry: the list of commands, and what becomes of an error."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from endwell.cli.base import failures
from endwell.cli.base.lazy import CommandPlace, LazyGroup

PLACES = {
    "init": CommandPlace(
        "endwell.cli.init:init", "A runnable starter project: an app with an agent, its test, settings."
    ),
    "submit": CommandPlace("endwell.cli.submit:submit", "Ask for work."),
    "submit-many": CommandPlace(
        "endwell.cli.submit_many:submit_many", "Ask for much work: one JSON value per line."
    ),
    "task": CommandPlace("endwell.cli.tasks:task", "List, show, cancel, retry, unblock and assign tasks."),
    "why": CommandPlace(
        "endwell.cli.why:why", "Where a task is, what moves it next, when it ends at the latest."
    ),
    "bounds": CommandPlace("endwell.cli.why:bounds", "What is guaranteed about the tasks of each agent."),
    "approval": CommandPlace("endwell.cli.approval:approval", "What people are asked to agree to."),
    "tool": CommandPlace("endwell.cli.tool:tool", "Tool calls that somebody is to answer."),
    "signal": CommandPlace("endwell.cli.signal:signal", "Tell a task something by name."),
    "inbox": CommandPlace("endwell.cli.inbox:inbox", "What was sent to agents, and what became of it."),
    "effect": CommandPlace("endwell.cli.effect:effect", "Effects outside, and those of which nobody knows."),
    "dlq": CommandPlace("endwell.cli.dlq:dlq", "Dead letters: failed tasks that await a verdict."),
    "events": CommandPlace("endwell.cli.events:events", "Read the log, and check that nobody touched it."),
    "restored": CommandPlace(
        "endwell.cli.transfer:restored", "Say that the store was restored from a backup."
    ),
    "relay": CommandPlace(
        "endwell.cli.relay:relay", "How far the outside was told, and a way past what it will never take."
    ),
    "worker": CommandPlace("endwell.cli.serve:worker", "Execute tasks until stopped."),
    "pmo": CommandPlace("endwell.cli.serve:pmo", "Supervise until stopped: fire clocks, reclaim, dispatch."),
    "up": CommandPlace("endwell.cli.serve:up", "A worker and a PMO in one process."),
    "config": CommandPlace("endwell.cli.config:config", "Show the settings."),
    "doctor": CommandPlace(
        "endwell.cli.doctor:doctor",
        "Look at everything that must be in order, and say what to do about what is not.",
    ),
    "metrics": CommandPlace(
        "endwell.cli.doctor:metrics",
        "A few numbers for whoever watches from outside, as Prometheus reads them.",
    ),
    "migrate": CommandPlace("endwell.cli.config:migrate", "Bring the store's schema up to date."),
    "demo": CommandPlace(
        "endwell.demo.command:demo", "Kill workers while tasks run, and count what was lost."
    ),
    "verify": CommandPlace("endwell.cli.verify:verify", "Try the promises on this machine."),
    "selftest": CommandPlace(
        "endwell.selftest.command:selftest", "Try whether something outside does what Endwell needs of it."
    ),
    "bench": CommandPlace("endwell.bench.command:bench", "Measure speed on this machine."),
}


@click.group(cls=LazyGroup, places=PLACES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="endwell", message="%(prog)s %(version)s")
def cli() -> None:
    """Every agent task ends. No side effect happens twice.

    \b
      endwell up --app hello:app
      endwell submit clerk '{"id": "42"}' --wait
      endwell task list --store sqlite:///hello.db

    Where something is: `endwell why TASK`. What went wrong: `endwell dlq list`.
    """


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line; the exit code. Every error is told once, here."""
    manner = failures.Manner.of(arguments)
    try:
        failures.refuse_what_is_no_text(arguments)
        with cli.make_context("endwell", list(arguments)) as ctx:
            code = cli.invoke(ctx)
        sys.stdout.flush()
    except BaseException as error:
        return failures.tell(error, manner)
    return code if isinstance(code, int) else 0
