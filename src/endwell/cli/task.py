"""`endwell task`: list, show, history, tree, cancel, retry, unblock, assign."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import click

from endwell.app import Node
from endwell.cli.base.commands import EndwellGroup, paged_options
from endwell.cli.base.loading import show_answer
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import block, list_text, one_line, pairs_text, table_text
from endwell.model import status as s
from endwell.model.task import Task
from endwell.operate import questions
from endwell.operate.questions import task_shape

_TASK = click.argument("task_id", metavar="TASK")


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
@paged_options
@pass_options
def list_tasks(options: Options, /, **wanted: Any) -> None:
    """List tasks, newest first, without payloads and results; `task show` has them.

    \b
      endwell task list --status running --agent coder --limit 20
    """
    show_answer(options, lambda node: questions.tasks(node.store, node.app.namespace, **wanted), _page_text)


@task.command("show")
@_TASK
@pass_options
def show_task(options: Options, task_id: str) -> None:
    """Show one task: its payload, its result, its error with the traceback, its turns.

    \b
      endwell task show 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    show_answer(
        options, lambda node: questions.whole_task(node.store, node.app.namespace, task_id), task_text
    )


@task.command()
@_TASK
@pass_options
def history(options: Options, task_id: str) -> None:
    """Show all events of a task, oldest first.

    \b
      endwell task history 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    show_answer(
        options,
        lambda node: questions.history(node.store, node.app.namespace, task_id),
        lambda page: "\n".join(map(event_line, page["items"])),
    )


@task.command("tree")
@_TASK
@pass_options
def show_tree(options: Options, task_id: str) -> None:
    """Show a task with the tasks that its agents asked for.

    \b
      endwell task tree 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    show_answer(options, lambda node: questions.tree(node.store, node.app.namespace, task_id), _tree_text)


def _show_changed(
    options: Options, change: Callable[[Node], Awaitable[Task]], text: Callable[[dict[str, Any]], str]
) -> None:
    async def ask_store(node: Node) -> dict[str, Any]:
        return task_shape(await change(node))

    show_answer(options, ask_store, text)


def _status_text(found: dict[str, Any]) -> str:
    return f"task {found['id']} is {found['status']}"


@task.command()
@_TASK
@click.option("--reason", default="cancelled", help="Why; kept with the task.")
@pass_options
def cancel(options: Options, task_id: str, reason: str) -> None:
    """End a task now, in any status.

    \b
      endwell task cancel 01j8z3k5v7x9a1c3e5g7j9m1p3 --reason 'ordered twice'
    """
    _show_changed(options, lambda node: node.client.actions.cancel(task_id, reason), _status_text)


@task.command()
@_TASK
@pass_options
def retry(options: Options, task_id: str) -> None:
    """Start a waiting task now; replay an ended one as a new task.

    \b
      endwell task retry 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    _show_changed(options, lambda node: node.client.actions.retry(task_id), _status_text)


@task.command()
@_TASK
@pass_options
def unblock(options: Options, task_id: str) -> None:
    """Continue a blocked task. Its deadline moves by the time it was held.

    \b
      endwell task unblock 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    _show_changed(options, lambda node: node.client.unblock(task_id), _status_text)


@task.command()
@_TASK
@click.option("--to", "owner", required=True, metavar="NAME", help="Who is responsible from now on.")
@pass_options
def assign(options: Options, task_id: str, owner: str) -> None:
    """Make another person responsible for a task; reminders go to that person.

    \b
      endwell task assign 01j8z3k5v7x9a1c3e5g7j9m1p3 --to ada
    """
    _show_changed(
        options,
        lambda node: node.client.assign(task_id, owner),
        lambda found: f"{found['owner']} is responsible for task {found['id']}",
    )


def _tree_text(found: dict[str, Any]) -> str:
    lines = list(_tree_lines(found, ""))
    return "\n".join([*lines, "… and more"] if found["is_cut"] else lines)


def _tree_lines(node: dict[str, Any], indent: str) -> Iterator[str]:
    reason = f" ({one_line(node['reason'])})" if node["reason"] else ""
    yield f"{indent}{node['id']}  {_agent_reference(node)}  {node['status']}{reason}"
    for child in node["children"]:
        yield from _tree_lines(child, f"{indent}  ")


def event_line(event: dict[str, Any]) -> str:
    """One event in one line, without the traceback that `task show` has."""
    data, error = event["data"], event["data"].get("error")
    if isinstance(error, dict):
        data = {**data, "error": {key: value for key, value in error.items() if key != "traceback"}}
    text = one_line(data) if data else ""
    return f"{event['at']}  {event['task_id']}.{event['version']:<3} {event['type']:<22} {text}".rstrip()


def _page_text(page: dict[str, Any]) -> str:
    columns = ("id", "agent", "status", "reason", "retries", "created_at", "idempotency_key")
    rows = [
        (
            item["id"],
            _agent_reference(item),
            item["status"],
            item["reason"],
            item["retry_count"],
            item["created_at"],
            item["idempotency_key"] if item["idempotency_key"] != item["id"] else None,
        )
        for item in page["items"]
    ]
    return list_text(columns, rows, page["next"], empty="no tasks")


def _agent_reference(item: dict[str, Any]) -> str:
    return f"{item['agent']}/{item['agent_key']}" if item["agent_key"] else str(item["agent"])


def task_text(found: dict[str, Any]) -> str:
    """A task for people: the short facts, then the long ones."""
    long = ("payload", "result", "deliverable", "error", "executing", "turns")
    short = {key: value for key, value in found.items() if key not in long and value is not None}
    parts = [pairs_text(short), f"payload\n{block(found['payload'])}"]
    if found["status"] == "succeeded":
        parts.append(f"result\n{block(found['result'])}")
    elif found["deliverable"] and "draft" in found["deliverable"]:
        parts.append(f"draft\n{block(found['deliverable']['draft'])}")
    if found["error"]:
        parts.append(error_text(found["error"]))
    if found.get("executing"):
        parts.append(_rows_text(("step", "since", "worker"), found["executing"]))
    if found["turns"]:
        columns = ("number", "outcome", "error", "ended_at", "worker_id")
        parts.append(_rows_text(columns, found["turns"], number="turn"))
    return "\n\n".join(parts)


def _rows_text(columns: tuple[str, ...], items: list[dict[str, Any]], **headings: str) -> str:
    rows = [[item[column] for column in columns] for item in items]
    return table_text([headings.get(column, column) for column in columns], rows, empty="")


def error_text(error: dict[str, Any]) -> str:
    """An error and, where it was kept, its traceback."""
    message = " ".join(one_line(error[key]) for key in ("type", "message") if error[key])
    head = f"error\n{one_line(error['code'])}: {message}"
    trace = error.get("traceback")
    return f"{head}\n{trace.rstrip()}" if trace else head
