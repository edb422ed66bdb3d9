"""`endwell approval`: what people are asked to agree to, and their decisions."""

from __future__ import annotations

from typing import Any

import click

from endwell.cli.base.loading import with_node
from endwell.cli.base.options import EndwellGroup, Options, pass_asked
from endwell.cli.base.output import block, listed, pairs, show
from endwell.operate import approvals

_WHO = "Who decides; the submitting user unless said. Written down, not proved."


@click.group(cls=EndwellGroup)
def approval() -> None:
    """What people are asked to agree to.

    \b
      endwell approval list
      endwell approval approve ID --as ada
    """


@approval.command("list")
@click.option("--all", "everything", is_flag=True, help="Decided ones too.")
@click.option("--task", "task_id", metavar="TASK", help="Only those of this task.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, help="At most so many; 50 unless said.")
@click.option("--cursor", help="Go on where a page ended: its `next`.")
@pass_asked
def list_approvals(asked: Options, /, **wanted: Any) -> None:
    """Open approvals: before a task may start, or before its turn goes on.

    \b
      endwell approval list --task 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    page = with_node(asked, lambda node: approvals.page(node.store, node.app.namespace, **wanted))
    show(asked, page, _page_text)


@approval.command("show")
@click.argument("approval_id", metavar="ID")
@pass_asked
def show_approval(asked: Options, approval_id: str) -> None:
    """One approval, with exactly what is to be agreed to.

    \b
      endwell approval show 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    found = with_node(asked, lambda node: approvals.whole(node.store, node.app.namespace, approval_id))
    show(asked, found, _approval_text)


@approval.command()
@click.argument("approval_id", metavar="ID")
@click.option("--as", "who", metavar="NAME", help=_WHO)
@click.option("--shown", "shown_hash", metavar="HASH", help="Only if this is still what is shown.")
@pass_asked
def approve(asked: Options, approval_id: str, who: str | None, shown_hash: str | None) -> None:
    """Agree. Where several must, this is one voice.

    Nothing proves that the caller is NAME: one person can give several voices under several names.

    \b
      endwell approval approve 01j8z3k5v7x9a1c3e5g7j9m1p3 --as ada
    """
    decided = with_node(asked, lambda node: node.client.approve(approval_id, by=who, shown_hash=shown_hash))
    show(asked, decided, _decided_text)


@approval.command()
@click.argument("approval_id", metavar="ID")
@click.option("--as", "who", metavar="NAME", help=_WHO)
@pass_asked
def reject(asked: Options, approval_id: str, who: str | None) -> None:
    """Decline. One no is enough.

    \b
      endwell approval reject 01j8z3k5v7x9a1c3e5g7j9m1p3 --as ada
    """
    decided = with_node(asked, lambda node: node.client.reject(approval_id, by=who))
    show(asked, decided, _decided_text)


def _page_text(page: dict[str, Any]) -> str:
    columns = ("id", "question", "status", "by", "votes", "quorum", "expires_at")
    rows = [[_cell(item[key]) for key in columns] for item in page["items"]]
    return listed(columns, rows, page["next"], empty="nobody is asked anything")


def _cell(value: Any) -> Any:
    return ", ".join(value) or None if isinstance(value, list) else value


def _approval_text(found: dict[str, Any]) -> str:
    short = {key: _cell(value) for key, value in found.items() if key != "shown"}
    return f"{pairs(short)}\n\nshown\n{block(found['shown'])}"


def _decided_text(found: dict[str, Any]) -> str:
    if found["status"] == "open":
        return f"approval {found['id']}: {len(found['votes'])} of {found['quorum']} agree"
    return f"approval {found['id']} is {found['status']} by {found['decided_by']}"
