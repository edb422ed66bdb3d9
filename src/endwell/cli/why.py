"""`endwell why` and `endwell bounds`: what the clock table says about one task, and about all."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import click

from endwell.app import Node
from endwell.cli.base.commands import EndwellCommand
from endwell.cli.base.loading import required_app, show_answer
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import one_line, pairs_text, show, table_text
from endwell.cli.base.proposals import propose_commands
from endwell.operate.bounds import compute_bounds


@click.command(cls=EndwellCommand)
@click.argument("task_id", metavar="TASK")
@pass_options
def why(options: Options, task_id: str) -> None:
    """Show where a task is, what moves it next, when it ends at the latest.

    \b
      endwell why 01j8z3k5v7x9a1c3e5g7j9m1p3
    """

    async def ask_store(node: Node) -> dict[str, Any]:
        answer = await node.client.why(task_id)
        return {**answer, "commands": propose_commands(options, answer)}

    show_answer(options, ask_store, _why_text)


def _why_text(answer: dict[str, Any]) -> str:
    rule, at = answer["next"]["rule"], answer["next"]["at"]
    latest = answer["ended_at_the_latest"]
    lines = {
        "task": answer["task_id"],
        "status": f"{answer['status']}: {answer['meaning']}",
        "reason": answer["reason"],
        "error": _error_text(answer["error"]),
        "held by": _holder_text(answer["holder"]),
        "executing": "; ".join(map(executing_text, answer["executing"])) or None,
        "waits for": _waits_text(answer["waiting_for"]),
        "next": f"{rule} at {at}" if rule else "nothing: it has ended",
        "ended at": None if rule else latest,
        "ends by": answer["ends_by"] if rule else None,
        "ended at the latest": (latest or "when its owner unblocks it") if rule else None,
        "owner": answer["owner"],
        "note": "; ".join(map(one_line, answer["notes"])) or None,
    }
    facts = pairs_text({name: value for name, value in lines.items() if value is not None})
    commands = [f"  {command}" for command in answer["commands"]]
    return "\n".join([facts, *(["you can", *commands] if commands else [])])


def _holder_text(holder: dict[str, Any] | None) -> str | None:
    if holder is None:
        return None
    place = f"pid {holder['pid']} on {holder['host']}"
    heard = f"last heartbeat {holder['last_heartbeat']}, lease until {holder['lease_until']}"
    return f"worker {holder['name']} ({place}), {heard}"


def _error_text(error: dict[str, Any] | None) -> str | None:
    """On one line: `task show` has the rest."""
    if error is None:
        return None
    said = " ".join(error[key] for key in ("type", "message") if key in error)
    return f"{error['code']}: {said}" if said else str(error["code"])


def executing_text(doing: dict[str, Any]) -> str:
    """A step that a worker is running."""
    return f"{one_line(doing['step'])} since {doing['since']} by {one_line(doing['worker'])}"


_WAITS: Final = {
    "no_live_worker": "a live worker for",
    "worker": "a free worker for",
    "agent_key": "its agent key, which is held by task",
    "start_time": "its start time",
    "earlier_effect": "the end of an effect that an earlier attempt began:",
}
"""Waits in words, where the kind alone would not say it."""
MOST_NAMED: Final = 5
"""Waits that are shown; with `--json` all of them."""


def _waits_text(waits: list[dict[str, Any]]) -> str | None:
    named = [_wait_text(wait) for wait in waits[:MOST_NAMED]]
    more = len(waits) - len(named)
    return "; ".join([*named, f"and {more} more"] if more else named) or None


def _wait_text(wait: dict[str, Any]) -> str:
    until = f" until {wait['deadline']}" if wait["deadline"] else ""
    about = f" {one_line(wait['id'])}" if wait["id"] is not None else ""
    name = f" {one_line(wait['name'])}" if wait.get("name") else ""
    by = f" by {one_line(', '.join(wait['by']))}" if wait.get("by") else ""
    return f"{_WAITS.get(wait['kind'], wait['kind'])}{name}{about}{by}{until}"


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
