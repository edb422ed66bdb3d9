"""`endwell task`: list, show, history, tree, cancel, retry, unblock, assign."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from endwell.cli.base.loading import with_node
from endwell.cli.base.options import EndwellGroup, Options, pass_asked
from endwell.cli.base.output import block, listed, pairs, plain, show, table
from endwell.model import status as s
from endwell.operate import questions
from endwell.operate.questions import task_shape

_LIMITS = click.IntRange(1, 1000)


@click.group(cls=EndwellGroup)
def task() -> None:
    """List, show, cancel, retry, unblock and assign tasks.

    \b
      endwell task list --status failed
      endwell task show TASK
    """


@task.command("list")
@click.option("--status", type=click.Choice(s.ALL), help="Only tasks in this status.")
@click.option("--agent", help="Only tasks of this agent.")
@click.option("--key", help="Only the task with this idempotency key.")
@click.option("--limit", type=_LIMITS, default=50, help="At most so many; 50 unless said.")
@click.option("--cursor", help="Go on where a page ended: its `next`.")
@pass_asked
def list_tasks(asked: Options, /, **wanted: Any) -> None:
    """The newest tasks first. Payloads and results are left out; `task show` has them.

    \b
      endwell task list --status running --agent coder --limit 20
    """
    page = with_node(asked, lambda node: questions.tasks(node.store, node.app.namespace, **wanted))
    show(asked, page, _page_text)


@task.command("show")
@click.argument("task_id", metavar="TASK")
@pass_asked
def show_task(asked: Options, task_id: str) -> None:
    """All about one task: what was asked, what came of it, the error and its traceback, the turns.

    \b
      endwell task show 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    found = with_node(asked, lambda node: questions.whole_task(node.store, node.app.namespace, task_id))
    show(asked, found, task_text)


@task.command()
@click.argument("task_id", metavar="TASK")
@pass_asked
def history(asked: Options, task_id: str) -> None:
    """Everything that ever happened to a task: its events, oldest first.

    \b
      endwell task history 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    found = with_node(asked, lambda node: questions.history(node.store, node.app.namespace, task_id))
    show(asked, found, lambda page: "\n".join(event_line(event) for event in page["items"]))


@task.command()
@click.argument("task_id", metavar="TASK")
@click.option("--reason", default="cancelled", help="Why; kept with the task.")
@pass_asked
def cancel(asked: Options, task_id: str, reason: str) -> None:
    """End a task now, whatever it is doing.

    \b
      endwell task cancel 01j8z3k5v7x9a1c3e5g7j9m1p3 --reason 'ordered twice'
    """
    ended = with_node(asked, lambda node: node.client.actions.cancel(task_id, reason))
    show(asked, task_shape(ended), lambda found: f"task {found['id']} is {found['status']}")


@task.command()
@click.argument("task_id", metavar="TASK")
@pass_asked
def retry(asked: Options, task_id: str) -> None:
    """Start a waiting task now; ask again for one that ended, as a new task.

    \b
      endwell task retry 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    again = with_node(asked, lambda node: node.client.actions.retry(task_id))
    show(asked, task_shape(again), lambda found: f"task {found['id']} is {found['status']}")


@task.command()
@click.argument("task_id", metavar="TASK")
@pass_asked
def unblock(asked: Options, task_id: str) -> None:
    """Let a blocked task go on. The time that it was held is given back to it.

    \b
      endwell task unblock 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    moved = with_node(asked, lambda node: node.client.unblock(task_id))
    show(asked, task_shape(moved), lambda found: f"task {found['id']} is {found['status']}")


@task.command()
@click.argument("task_id", metavar="TASK")
@click.option("--to", "owner", required=True, metavar="NAME", help="Who answers for it from now on.")
@pass_asked
def assign(asked: Options, task_id: str, owner: str) -> None:
    """Name another person who answers for a task, and who is reminded when it is blocked.

    \b
      endwell task assign 01j8z3k5v7x9a1c3e5g7j9m1p3 --to ada
    """
    moved = with_node(asked, lambda node: node.client.assign(task_id, owner))
    show(asked, task_shape(moved), lambda found: f"task {found['id']} is {found['owner']}'s")


@task.command("tree")
@click.argument("task_id", metavar="TASK")
@pass_asked
def show_tree(asked: Options, task_id: str) -> None:
    """A task and everything that was asked for on its behalf.

    \b
      endwell task tree 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    found = with_node(asked, lambda node: questions.tree(node.store, node.app.namespace, task_id))
    show(asked, found, _tree_text)


def _tree_text(found: dict[str, Any]) -> str:
    lines = list(_tree_lines(found, ""))
    return "\n".join([*lines, "… and more"] if found["is_cut"] else lines)


def _tree_lines(node: dict[str, Any], indent: str) -> Iterator[str]:
    reason = f" ({plain(node['reason'])})" if node["reason"] else ""
    yield f"{indent}{node['id']}  {_reference(node)}  {node['status']}{reason}"
    for child in node["children"]:
        yield from _tree_lines(child, f"{indent}  ")


def event_line(event: dict[str, Any]) -> str:
    """One event in one line."""
    data = plain(_without_traceback(event["data"])) if event["data"] else ""
    return f"{event['at']}  {event['task_id']}.{event['version']:<3} {event['type']:<22} {data}".rstrip()


def _without_traceback(data: dict[str, Any]) -> dict[str, Any]:
    """`task show` has it; here it would bury everything else."""
    error = data.get("error")
    if not isinstance(error, dict):
        return data
    return {**data, "error": {key: value for key, value in error.items() if key != "traceback"}}


def _page_text(page: dict[str, Any]) -> str:
    columns = ("id", "agent", "status", "reason", "retries", "created_at", "idempotency_key")
    rows = [
        (
            item["id"],
            _reference(item),
            item["status"],
            item["reason"],
            item["retry_count"],
            item["created_at"],
            item["idempotency_key"] if item["idempotency_key"] != item["id"] else None,
        )
        for item in page["items"]
    ]
    return listed(columns, rows, page["next"], empty="no tasks")


def _reference(item: dict[str, Any]) -> str:
    return f"{item['agent']}/{item['agent_key']}" if item["agent_key"] else str(item["agent"])


def task_text(found: dict[str, Any]) -> str:
    """A task for people: the short facts, then what is longer."""
    long = ("payload", "result", "deliverable", "error", "executing", "turns")
    short = {key: value for key, value in found.items() if key not in long and value is not None}
    parts = [pairs(short), f"payload\n{block(found['payload'])}"]
    if found["status"] == "succeeded":
        parts.append(f"result\n{block(found['result'])}")
    elif found["deliverable"] and "draft" in found["deliverable"]:
        parts.append(f"draft\n{block(found['deliverable']['draft'])}")
    if found["error"]:
        parts.append(error_text(found["error"]))
    if found.get("executing"):
        rows = [(doing["step"], doing["since"], doing["worker"]) for doing in found["executing"]]
        parts.append(table(("step", "since", "worker"), rows, empty=""))
    if found["turns"]:
        columns = ("turn", "outcome", "error", "ended_at", "worker_id")
        parts.append(table(columns, [_turn_row(turn) for turn in found["turns"]], empty=""))
    return "\n\n".join(parts)


def _turn_row(turn: dict[str, Any]) -> tuple[Any, ...]:
    return turn["number"], turn["outcome"], turn["error"], turn["ended_at"], turn["worker_id"]


def error_text(error: dict[str, Any]) -> str:
    """An error and, where it was kept, its traceback."""
    said = " ".join(plain(error[key]) for key in ("type", "message") if error[key])
    head = f"error\n{plain(error['code'])}: {said}"
    trace = error.get("traceback")
    return f"{head}\n{trace.rstrip()}" if trace else head
