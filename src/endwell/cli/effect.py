"""`endwell effect`: what was changed outside, and a person's word on what nobody knows."""

from __future__ import annotations

from typing import Any, cast, get_args

import click

from endwell.cli.base.loading import with_node
from endwell.cli.base.options import EndwellGroup, Options, pass_asked
from endwell.cli.base.output import block, listed, pairs, show
from endwell.cli.base.values import payload_of
from endwell.model.effect import EffectStatus, Verdict
from endwell.operate import effects


@click.group(cls=EndwellGroup)
def effect() -> None:
    """Effects outside, and those of which nobody knows.

    \b
      endwell effect list --status unknown
      endwell effect settle pay:42 done --as ada
    """


@effect.command("list")
@click.option("--status", type=click.Choice(get_args(EffectStatus)), help="Only effects in this status.")
@click.option("--task", "task_id", metavar="TASK", help="Only those of this task.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, help="At most so many; 50 unless said.")
@click.option("--cursor", help="Go on where a page ended: its `next`.")
@pass_asked
def list_effects(asked: Options, /, **wanted: Any) -> None:
    """Effects by their keys.

    \b
      endwell effect list --status unknown
    """
    page = with_node(asked, lambda node: effects.page(node.store, node.app.namespace, **wanted))
    show(asked, page, _page_text)


@effect.command("show")
@click.argument("key")
@pass_asked
def show_effect(asked: Options, key: str) -> None:
    """One effect with its result.

    \b
      endwell effect show pay:42
    """
    found = with_node(asked, lambda node: effects.whole(node.store, node.app.namespace, key))
    show(asked, found, _effect_text)


@effect.command()
@click.argument("key")
@click.argument("verdict", type=click.Choice(["done", "not-done", "abandon"]))
@click.option("--as", "who", metavar="NAME", help="Who says so; the submitting user unless said.")
@click.option("--result", metavar="JSON|@FILE|-", help="What it returned, if it was done.")
@click.option("--force", is_flag=True, help="Say not-done although a call may be in progress; it is logged.")
@pass_asked
def settle(asked: Options, key: str, verdict: str, who: str | None, result: str | None, force: bool) -> None:
    """Say what became of an unknown effect. Its task goes on by that.

    Not done: it may be executed again. Abandon: it is never executed, and the task hears so. Not done is
    refused, with the moment from which on it counts, while a call of the effect may be in progress.

    \b
      endwell effect settle pay:42 done --as ada --result '{"receipt": "r-1"}'
    """
    said = payload_of(result)
    word = cast("Verdict", verdict.replace("-", "_"))
    done = with_node(asked, lambda node: node.client.settle_effect(key, word, said, by=who, force=force))
    show(asked, done, lambda found: f"effect {found['key']} is {found['status']}")


def _page_text(page: dict[str, Any]) -> str:
    columns = ("key", "status", "task_id", "step", "settled_by", "updated_at")
    rows = [[item[key] for key in columns] for item in page["items"]]
    return listed(columns, rows, page["next"], empty="no effects")


def _effect_text(found: dict[str, Any]) -> str:
    short = {key: value for key, value in found.items() if key != "result"}
    return f"{pairs(short)}\n\nresult\n{block(found['result'])}"
