"""`endwell doctor` and `endwell metrics`: whether everything is in order, for people and for programs."""

from __future__ import annotations

from typing import Any

import click

from endwell.app import Node
from endwell.cli.base.loading import with_node
from endwell.cli.base.options import EndwellCommand, Options, pass_asked
from endwell.cli.base.output import show
from endwell.cli.transfer import all_namespaces
from endwell.errors import StoreError
from endwell.operate import metrics as operate_metrics
from endwell.operate.doctor.examine import examine, of_error, report
from endwell.operate.doctor.finding import Patient
from endwell.settings.store_url import sqlite_path

MEGABYTE = 1024 * 1024


@click.command(cls=EndwellCommand)
@click.option("--free", type=click.IntRange(0), default=256, metavar="MB", help="How much disk must be free.")
@pass_asked
def doctor(asked: Options, free: int) -> int:
    """Look at everything that must be in order, and say what to do about what is not.

    All namespaces are looked at unless --namespace names one. Exit 1 if anything is an error, 5 if the
    store cannot be used at all.

    \b
      endwell doctor --store sqlite:///hello.db
    """
    try:
        answer = with_node(asked, lambda node: _examined(node, asked, free))
    except StoreError as error:
        show(asked, report([of_error(error)], [{"name": "store", "status": "error"}]), _report_text)
        return error.exit_code
    show(asked, answer, _report_text)
    return 0 if answer["ok"] else 1


async def _examined(node: Node, asked: Options, free: int) -> dict[str, Any]:
    url = node.app.url
    patient = Patient(
        store=node.store,
        bell=node.bell.health(),
        clock=node.app.runtime.clock,
        settings=node.app.settings,
        namespaces=tuple(await all_namespaces(node, asked)),
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
    fine = [check["name"] for check in answer["checks"] if check["status"] == "ok"]
    if fine:
        lines.append(f"ok       {', '.join(fine)}")
    return "\n".join(lines)


@click.command(cls=EndwellCommand)
@pass_asked
def metrics(asked: Options) -> None:
    """A few numbers for whoever watches from outside, as Prometheus reads them.

    \b
      endwell metrics --store sqlite:///hello.db
    """

    async def ask(node: Node) -> str:
        namespaces = await all_namespaces(node, asked)
        return await operate_metrics.metrics(node.store, namespaces, node.app.settings)

    show(asked, {"text": with_node(asked, ask)}, lambda answer: str(answer["text"]))
