"""`endwell inbox`: messages to agents, and what became of them."""

from __future__ import annotations

from typing import Any, get_args

import click

from endwell.cli.base.commands import EndwellGroup, paged_options, task_option
from endwell.cli.base.loading import show_answer
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import block, page_text, pairs_text
from endwell.model.message import MessageStatus, MessageType
from endwell.operate import inbox as operate_inbox

_PAGE = page_text(
    ("inbox_id", "message_type", "status", "agent_id", "task_id", "watchdog_error", "created_at"),
    empty="no messages",
)


@click.group(cls=EndwellGroup)
def inbox() -> None:
    """Messages to agents, and what became of them.

    \b
      endwell inbox list --status skipped
      endwell inbox show MESSAGE
    """


@inbox.command("list")
@click.option("--status", type=click.Choice(get_args(MessageStatus)), help="Only messages in this status.")
@click.option("--agent", help="Only messages to this agent.")
@task_option
@click.option("--type", "message_type", type=click.Choice(get_args(MessageType)), help="Only this type.")
@paged_options
@pass_options
def list_messages(options: Options, /, **wanted: Any) -> None:
    """List messages, newest first. A `skipped` one could not be delivered; watchdog_error says why.

    \b
      endwell inbox list --status skipped
    """
    show_answer(options, lambda node: operate_inbox.page(node.store, node.app.namespace, **wanted), _PAGE)


@inbox.command("show")
@click.argument("message_id", metavar="MESSAGE")
@pass_options
def show_message(options: Options, message_id: str) -> None:
    """Show one message with its content.

    \b
      endwell inbox show 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    show_answer(
        options,
        lambda node: operate_inbox.read_message(node.store, node.app.namespace, message_id),
        _message_text,
    )


def _message_text(found: dict[str, Any]) -> str:
    short = {key: value for key, value in found.items() if key != "content" and value is not None}
    if found["card_id"] is None:  # an offered turn has its content in its row
        return pairs_text(short)
    return f"{pairs_text(short)}\n\ncontent\n{block(found['content'])}"
