"""`endwell why` and `endwell bounds`: what the clock table says of one task, and of every task."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any

import click

from endwell.cli.asked import Asked, Command, pass_asked
from endwell.cli.loading import required_app, with_node
from endwell.cli.output import pairs, plain, show, table
from endwell.operate import bounds as operate_bounds
from endwell.operate import why as operate_why


@click.command(cls=Command)
@click.argument("task_id", metavar="TASK")
@pass_asked
def why(asked: Asked, task_id: str) -> None:
    """Where a task is, what moves it next, when it ends at the latest.

    \b
      endwell why 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    answer = with_node(asked, lambda node: operate_why.why(node.store, node.app.namespace, task_id))
    show(asked, answer, _why_text)


def _why_text(answer: dict[str, Any]) -> str:
    rule, at = answer["next"]["rule"], answer["next"]["at"]
    lines = {
        "task": answer["task_id"],
        "status": f"{answer['status']}: {answer['meaning']}",
        "reason": answer["reason"],
        "held by": _holder_text(answer["holder"]),
        "executing": "; ".join(map(executing_text, answer["executing"])) or None,
        "waits for": "; ".join(map(_wait_text, answer["waiting_for"])) or None,
        "next": f"{rule} at {at}" if rule else "nothing: it has ended",
        "ends by": answer["ends_by"],
        "owner": answer["owner"],
        "you can": ", ".join(f"endwell {action} {answer['task_id']}" for action in answer["actions"]) or None,
    }
    return pairs({name: value for name, value in lines.items() if value is not None})


def _holder_text(holder: dict[str, Any] | None) -> str | None:
    if holder is None:
        return None
    place = f"pid {holder['pid']} on {holder['host']}"
    return f"worker {holder['name']} ({place}), last heartbeat {holder['last_heartbeat']}"


def executing_text(doing: dict[str, Any]) -> str:
    """A step that a worker is at."""
    return f"{plain(doing['step'])} since {doing['since']} by {plain(doing['worker'])}"


def _wait_text(wait: dict[str, Any]) -> str:
    return f"{wait['kind']} {plain(wait['id'])} until {wait['deadline']}"


@click.command(cls=Command)
@pass_asked
def bounds(asked: Asked) -> None:
    """What is guaranteed about the tasks of each agent.

    Read off the settings and the clock table; nothing is asked of the store.

    \b
      endwell bounds --app hello:app
    """
    app = required_app(asked)
    specs = [agent.spec() for agent in app.agents.values()]
    show(asked, operate_bounds.bounds(app.settings, app.limits, specs), _bounds_text)


def _bounds_text(answer: dict[str, Any]) -> str:
    """Agents with the same clock table stand above it together."""
    parts: list[str] = []
    for statuses, items in groupby(answer["items"], key=itemgetter("statuses")):
        parts += [pairs({key: item[key] for key in item if key != "statuses"}) for item in items]
        parts.append(_clock_table(statuses))
    return "\n\n".join(parts) or "the app has no agents"


def _clock_table(statuses: dict[str, list[dict[str, Any]]]) -> str:
    columns = ("rule", "after", "then")
    rows = [[status, *(rule[key] for key in columns)] for status, rules in statuses.items() for rule in rules]
    return table(("status", *columns), rows, empty="")
