"""`endwell doctor` and `endwell metrics`: is everything in order? For people and for programs."""

from __future__ import annotations

from typing import Any

import click

from endwell.app import Node
from endwell.cli.base.commands import EndwellCommand
from endwell.cli.base.loading import all_namespaces, show_answer
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import show
from endwell.errors import StoreError
from endwell.operate import metrics as operate_metrics
from endwell.operate.doctor.examine import examine, of_error, report
from endwell.operate.doctor.finding import Patient
from endwell.settings.store_url import sqlite_path

MEGABYTE = 1024 * 1024


@click.command(cls=EndwellCommand)
@click.option(
    "--free", type=click.IntRange(0), default=256, metavar="MB", help="Disk space that must be free."
)
@pass_options
def doctor(options: Options, free: int) -> int:
    """Check everything that Endwell needs, and say how to mend what is wrong.

    All namespaces are checked unless --namespace names one. Exit 1 if a finding is an error, 5 if the
    store cannot be used at all.

    \b
      endwell doctor --store sqlite:///hello.db
    """
    try:
        answer = show_answer(options, lambda node: _examine(node, options, free), _report_text)
    except StoreError as error:
        show(options, report([of_error(error)], [{"name": "store", "status": "error"}]), _report_text)
        return error.exit_code
    return 0 if answer["ok"] else 1


async def _examine(node: Node, options: Options, free: int) -> dict[str, Any]:
    url = node.app.url
    patient = Patient(
        store=node.store,
        bell=node.bell.health(),
        clock=node.app.runtime.clock,
        settings=node.app.settings,
        namespaces=tuple(await all_namespaces(node, options)),
        path=sqlite_path(url).absolute() if url.startswith("sqlite:") else None,
        least_free_bytes=free * MEGABYTE,
        facts=await node.store.settings(),
        connect_stream=node.app.open_redis,
    )
    return await examine(patient)


def _report_text(answer: dict[str, Any]) -> str:
    lines: list[str] = []
    for finding in answer["findings"]:
        where = f" [{finding['namespace']}]" if finding["namespace"] not in (None, "default") else ""
        lines.append(f"{finding['severity']:<7}  {finding['code']}{where}: {finding['message']}")
        lines.append(f"         {finding['remedy']}")
    if good := [check["name"] for check in answer["checks"] if check["status"] == "ok"]:
        lines.append(f"ok       {', '.join(good)}")
    return "\n".join(lines)


@click.command(cls=EndwellCommand)
@pass_options
def metrics(options: Options) -> None:
    """Print figures for Prometheus.

    \b
      endwell metrics --store sqlite:///hello.db
    """

    async def ask_store(node: Node) -> dict[str, str]:
        namespaces = await all_namespaces(node, options)
        return {"text": await operate_metrics.metrics(node.store, namespaces, node.app.settings)}

    show_answer(options, ask_store, lambda answer: answer["text"])
