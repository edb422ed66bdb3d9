"""`endwell inbox`: what was sent to agents, and what became of it."""

from __future__ import annotations

from typing import Any, get_args

import click

from endwell.cli.base.loading import with_node
from endwell.cli.base.options import EndwellGroup, Options, pass_asked
from endwell.cli.base.output import block, listed, pairs, show
from endwell.model.message import MessageStatus, MessageType
from endwell.operate import inbox as operate_inbox


@click.group(cls=EndwellGroup)
def inbox() -> None:
    """What was sent to agents, and what became of it.

    \b
      endwell inbox list --status skipped
      endwell inbox show MESSAGE
    """


@inbox.command("list")
@click.option("--status", type=click.Choice(get_args(MessageStatus)), help="Only messages in this status.")
@click.option("--agent", help="Only messages to this agent.")
@click.option("--task", "task_id", metavar="TASK", help="Only those of this task.")
@click.option("--type", "message_type", type=click.Choice(get_args(MessageType)), help="Only this type.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, help="At most so many; 50 unless said.")
@click.option("--cursor", help="Go on where a page ended: its `next`.")
@pass_asked
def list_messages(asked: Options, /, **wanted: Any) -> None:
    """The newest messages first. `skipped` ones could not be delivered, and say why.

    \b
      endwell inbox list --status skipped
    """
    page = with_node(asked, lambda node: operate_inbox.page(node.store, node.app.namespace, **wanted))
    show(asked, page, _page_text)


@inbox.command("show")
@click.argument("message_id", metavar="MESSAGE")
@pass_asked
def show_message(asked: Options, message_id: str) -> None:
    """One message with its content.

    \b
      endwell inbox show 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    found = with_node(asked, lambda node: operate_inbox.whole(node.store, node.app.namespace, message_id))
    show(asked, found, _message_text)


def _page_text(page: dict[str, Any]) -> str:
    columns = ("inbox_id", "message_type", "status", "agent_id", "task_id", "watchdog_error", "created_at")
    rows = [[item[key] for key in columns] for item in page["items"]]
    return listed(columns, rows, page["next"], empty="no messages")


def _message_text(found: dict[str, Any]) -> str:
    short = {key: value for key, value in found.items() if key != "content" and value is not None}
    if found["card_id"] is None:  # an offered turn says all in its row
        return pairs(short)
    return f"{pairs(short)}\n\ncontent\n{block(found['content'])}"
