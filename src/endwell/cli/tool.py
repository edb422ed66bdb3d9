"""`endwell tool`: tool calls that somebody is to answer."""

from __future__ import annotations

from typing import Any

import click

from endwell.cli.base.loading import with_node
from endwell.cli.base.options import EndwellGroup, Options, pass_asked
from endwell.cli.base.output import show, table
from endwell.cli.base.values import payload_of
from endwell.operate import tool_calls


@click.group(cls=EndwellGroup)
def tool() -> None:
    """Tool calls that somebody is to answer.

    \b
      endwell tool list
      endwell tool answer CALL '{"found": 3}'
    """


@tool.command("list")
@click.option("--task", "task_id", metavar="TASK", help="Only those of this task.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, help="At most so many; 50 unless said.")
@pass_asked
def list_calls(asked: Options, /, **wanted: Any) -> None:
    """Open calls, the most urgent first.

    \b
      endwell tool list --task 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    page = with_node(asked, lambda node: tool_calls.open_calls(node.store, node.app.namespace, **wanted))
    show(asked, page, _page_text)


@tool.command("answer")
@click.argument("call_id", metavar="CALL")
@click.argument("value", metavar="JSON|@FILE|-")
@click.option("--fail", "is_failure", is_flag=True, help="The tool failed; the JSON is the error.")
@pass_asked
def answer_call(asked: Options, call_id: str, value: str, is_failure: bool) -> None:
    """Give a call its result. The first answer counts; the others are kept.

    \b
      endwell tool answer '01j8z3k5v7x9a1c3e5g7j9m1p3.s.1:()search#1' '["a", "b"]'
    """
    said = payload_of(value)
    done = with_node(
        asked,
        lambda node: (
            node.client.fail_call(call_id, said) if is_failure else node.client.answer(call_id, said)
        ),
    )
    show(asked, done, lambda found: f"the answer is {found['outcome']}; the task is {found['task_status']}")


def _page_text(page: dict[str, Any]) -> str:
    columns = ("call_id", "tool", "task_id", "deadline", "created_at")
    return table(columns, [[item[key] for key in columns] for item in page["items"]], empty="no open calls")
