"""`endwell why`: where a task is, what moves it next, and what a person can do about it."""

from __future__ import annotations

import shlex
from typing import Any, Final

import click

from endwell.app import Node
from endwell.cli.base.commands import EndwellCommand
from endwell.cli.base.loading import show_answer
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import one_line, pairs_text
from endwell.settings import mask_url

MOST_WAITS: Final = 3
"""Waits of one kind for which commands are shown."""
_VERDICTS: Final = ("done", "not-done", "abandon")


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
    beat = f"last heartbeat {holder['last_heartbeat']}, lease until {holder['lease_until']}"
    return f"worker {holder['name']} ({place}), {beat}"


def _error_text(error: dict[str, Any] | None) -> str | None:
    """On one line: `task show` has the rest."""
    if error is None:
        return None
    message = " ".join(error[key] for key in ("type", "message") if key in error)
    return f"{error['code']}: {message}" if message else str(error["code"])


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


def propose_commands(options: Options, answer: dict[str, Any]) -> list[str]:
    """The commands for the actions that `why` names, on the same store, namespace and app."""
    where = _shared_options(options)
    return [
        " ".join(["endwell", action, *words, *where])
        for action in answer["actions"]
        for words in _words_of(action, answer)
    ]


def _words_of(action: str, answer: dict[str, Any]) -> list[list[str]]:
    """The words after the action's name, once for each thing that it can be done to."""
    kind = action.split()[0]
    waits = [wait for wait in answer["waiting_for"] if wait["kind"] == kind][:MOST_WAITS]
    task = quote_word(answer["task_id"])
    if action == "signal":
        return [[task, quote_word(wait.get("name") or "NAME"), "JSON"] for wait in waits]
    if action == "tool answer":
        return [[quote_word(wait["id"]), "JSON"] for wait in waits]
    if action == "effect settle":
        return [[quote_word(wait["id"]), verdict] for wait in waits for verdict in _VERDICTS]
    if kind == "approval":
        return [[quote_word(wait["id"]), *_as_whom(wait["by"])] for wait in waits]
    return [[task, "--to", "NAME"]] if action == "task assign" else [[task]]


def _as_whom(names: list[str]) -> list[str]:
    """If people are named, one of them must decide."""
    return ["--as", quote_word(names[0])] if names else []


def _shared_options(options: Options) -> list[str]:
    """The options of this command line; what settings say holds for the next command too."""
    given = (
        ("--store", mask_url(options.store) if options.store else None),
        ("--namespace", options.namespace),
        ("--app", options.app),
    )
    return [word for option, value in given if value for word in (option, quote_word(value))]


def quote_word(text: str) -> str:
    return shlex.quote(one_line(text))
