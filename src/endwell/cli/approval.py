"""`endwell approval`: what people are asked to agree to, and their decisions."""

from __future__ import annotations

from typing import Any

import click

from endwell.cli.base.commands import EndwellGroup, paged_options, task_option
from endwell.cli.base.loading import show_answer
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import block, page_text, pairs_text
from endwell.operate import approvals

_AS = click.option("--as", "who", metavar="NAME", help="Who decides; default: your user. Not verified.")
_PAGE = page_text(
    ("id", "question", "status", "by", "votes", "quorum", "expires_at"), empty="no approval is open"
)


@click.group(cls=EndwellGroup)
def approval() -> None:
    """What people are asked to agree to.

    \b
      endwell approval list
      endwell approval approve ID --as ada
    """


@approval.command("list")
@click.option("--all", "everything", is_flag=True, help="Also decided ones.")
@task_option
@paged_options
@pass_options
def list_approvals(options: Options, /, **wanted: Any) -> None:
    """List open approvals: before a task starts, or inside a turn.

    \b
      endwell approval list --task 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    show_answer(options, lambda node: approvals.page(node.store, node.app.namespace, **wanted), _PAGE)


@approval.command("show")
@click.argument("approval_id", metavar="ID")
@pass_options
def show_approval(options: Options, approval_id: str) -> None:
    """Show one approval, with exactly what is to be agreed to.

    \b
      endwell approval show 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    show_answer(
        options,
        lambda node: approvals.read_approval(node.store, node.app.namespace, approval_id),
        _approval_text,
    )


@approval.command()
@click.argument("approval_id", metavar="ID")
@_AS
@click.option(
    "--shown", "shown_hash", metavar="HASH", help="Only if this is still the hash of what is shown."
)
@pass_options
def approve(options: Options, approval_id: str, who: str | None, shown_hash: str | None) -> None:
    """Agree. Where several people must, this is one vote.

    Nothing verifies that the caller is NAME: one person can give several votes under several names.

    \b
      endwell approval approve 01j8z3k5v7x9a1c3e5g7j9m1p3 --as ada
    """
    show_answer(
        options,
        lambda node: node.client.approve(approval_id, by=who, shown_hash=shown_hash),
        _decided_text,
    )


@approval.command()
@click.argument("approval_id", metavar="ID")
@_AS
@pass_options
def reject(options: Options, approval_id: str, who: str | None) -> None:
    """Decline. One no is enough.

    \b
      endwell approval reject 01j8z3k5v7x9a1c3e5g7j9m1p3 --as ada
    """
    show_answer(options, lambda node: node.client.reject(approval_id, by=who), _decided_text)


def _approval_text(found: dict[str, Any]) -> str:
    people = {key: ", ".join(found[key]) or None for key in ("by", "votes")}
    short = {key: people.get(key, value) for key, value in found.items() if key != "shown"}
    return f"{pairs_text(short)}\n\nshown\n{block(found['shown'])}"


def _decided_text(found: dict[str, Any]) -> str:
    if found["status"] == "open":
        return f"approval {found['id']}: {len(found['votes'])} of {found['quorum']} agree"
    return f"approval {found['id']} is {found['status']} by {found['decided_by']}"
