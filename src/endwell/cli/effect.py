"""`endwell effect`: what was changed outside, and a person's verdict on effects whose outcome is unknown."""

from __future__ import annotations

from typing import Any, cast, get_args

import click

from endwell.cli.base.commands import EndwellGroup, as_option, paged_options, task_option
from endwell.cli.base.loading import show_answer
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import block, page_text, pairs_text
from endwell.cli.base.values import payload_of
from endwell.model.effect import EffectStatus, Verdict
from endwell.operate import effects

_PAGE = page_text(("key", "status", "task_id", "step", "settled_by", "updated_at"), empty="no effects")


@click.group(cls=EndwellGroup)
def effect() -> None:
    """Effects outside, and verdicts on unknown ones.

    \b
      endwell effect list --status unknown
      endwell effect settle pay:42 done --as ada
    """


@effect.command("list")
@click.option("--status", type=click.Choice(get_args(EffectStatus)), help="Only effects in this status.")
@task_option
@paged_options
@pass_options
def list_effects(options: Options, /, **wanted: Any) -> None:
    """List effects by their keys.

    \b
      endwell effect list --status unknown
    """
    show_answer(options, lambda node: effects.page(node.store, node.app.namespace, **wanted), _PAGE)


@effect.command("show")
@click.argument("key")
@pass_options
def show_effect(options: Options, key: str) -> None:
    """Show one effect with its result.

    \b
      endwell effect show pay:42
    """
    show_answer(options, lambda node: effects.read_effect(node.store, node.app.namespace, key), _effect_text)


@effect.command()
@click.argument("key")
@click.argument("verdict", type=click.Choice(["done", "not-done", "abandon"]))
@as_option
@click.option("--result", metavar="JSON|@FILE|-", help="What the effect returned, if it was done.")
@click.option("--force", is_flag=True, help="Not-done although a call may be in progress; it is logged.")
@pass_options
def settle(
    options: Options, key: str, verdict: str, who: str | None, result: str | None, force: bool
) -> None:
    """Record the outcome of an unknown effect; its task continues by it.

    Not done: it may be executed again. Abandon: it is never executed, and the task gets an error. Not done
    is refused while a call of the effect may be in progress; the error says until when.

    \b
      endwell effect settle pay:42 done --as ada --result '{"receipt": "r-1"}'
    """
    value = payload_of(result)
    word = cast("Verdict", verdict.replace("-", "_"))
    show_answer(
        options,
        lambda node: node.client.settle_effect(key, word, value, by=who, force=force),
        lambda found: f"effect {found['key']} is {found['status']}",
    )


def _effect_text(found: dict[str, Any]) -> str:
    short = {key: value for key, value in found.items() if key != "result"}
    return f"{pairs_text(short)}\n\nresult\n{block(found['result'])}"
