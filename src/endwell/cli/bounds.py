"""`endwell bounds`: by when and how often tasks of each agent run."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any

import click

from endwell.cli.base.commands import EndwellCommand
from endwell.cli.base.loading import required_app
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import pairs_text, show, table_text
from endwell.operate.bounds import compute_bounds


@click.command(cls=EndwellCommand)
@pass_options
def bounds(options: Options) -> int:
    """Show by when and how often tasks of each agent run.

    Read off the settings and the clock table, not from the store. Exit 1 if a task of an agent could end
    later than two ticks of a PMO after its `ends_by`.

    \b
      endwell bounds --app hello:app
    """
    app = required_app(options)
    specs = [agent.spec() for agent in app.agents.values()]
    answer = compute_bounds(app.settings, app.limits, specs, has_stamps=app.open_store().has_stamps)
    show(options, answer, _bounds_text)
    return 0 if answer["ok"] else 1


def _bounds_text(answer: dict[str, Any]) -> str:
    """Agents with the same clock table share it."""
    parts: list[str] = []
    for statuses, items in groupby(answer["items"], key=itemgetter("statuses")):
        parts += [_agent_text(item) for item in items]
        parts.append(_clock_table(statuses))
    return "\n\n".join(parts) or "the app has no agents"


def _agent_text(item: dict[str, Any]) -> str:
    """The figures, and the sums behind the bounds."""
    long = ("statuses", "sum", "silent_agent")
    figures = pairs_text({key: item[key] for key in item if key not in long})
    latest = _sum_text("the latest end of a task in any case", item["sum"])
    silent = _sum_text(
        "sooner, if its agent takes each turn and never reports progress", item["silent_agent"]
    )
    return f"{figures}\n\n{latest}\n\n{silent}"


def _sum_text(what: str, parts: list[dict[str, Any]]) -> str:
    rows = [(part["seconds"], part["part"], part["from"]) for part in parts]
    seconds = [part["seconds"] for part in parts]
    total = "never" if None in seconds else f"{sum(seconds):g} s after its start time"
    return f"{what}: {total}\n{table_text(('seconds', 'part', 'from'), rows, empty='')}"


def _clock_table(statuses: dict[str, list[dict[str, Any]]]) -> str:
    columns = ("rule", "after", "then")
    rows = [[status, *(rule[key] for key in columns)] for status, rules in statuses.items() for rule in rules]
    return table_text(("status", *columns), rows, empty="")
