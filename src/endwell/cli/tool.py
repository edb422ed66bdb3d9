"""`endwell tool`: tool calls that wait for an answer."""

from __future__ import annotations

from typing import Any

import click

from endwell.cli.base.commands import EndwellGroup, limit_option, task_option
from endwell.cli.base.loading import show_answer
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import page_text
from endwell.cli.base.values import payload_of
from endwell.operate import tool_calls

_PAGE = page_text(("call_id", "tool", "task_id", "deadline", "created_at"), empty="no open calls")


@click.group(cls=EndwellGroup)
def tool() -> None:
    """Tool calls that wait for an answer.

    \b
      endwell tool list
      endwell tool answer CALL '{"found": 3}'
    """


@tool.command("list")
@task_option
@limit_option
@pass_options
def list_calls(options: Options, /, **wanted: Any) -> None:
    """List open calls, the most urgent first.

    \b
      endwell tool list --task 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    show_answer(options, lambda node: tool_calls.open_calls(node.store, node.app.namespace, **wanted), _PAGE)


@tool.command("answer")
@click.argument("call_id", metavar="CALL")
@click.argument("value", metavar="JSON|@FILE|-")
@click.option("--fail", "is_failure", is_flag=True, help="The tool failed; the JSON is the error.")
@pass_options
def answer_call(options: Options, call_id: str, value: str, is_failure: bool) -> None:
    """Give a call its result. The first answer counts; later ones are kept.

    \b
      endwell tool answer '01j8z3k5v7x9a1c3e5g7j9m1p3.s.1:()search#1' '["a", "b"]'
    """
    answer = payload_of(value)
    show_answer(
        options,
        lambda node: (
            node.client.fail_call(call_id, answer) if is_failure else node.client.answer(call_id, answer)
        ),
        lambda found: f"the answer is {found['outcome']}; the task is {found['task_status']}",
    )
