"""What a person could do about a task now, as commands that a shell takes as they are, one by one."""

from __future__ import annotations

import shlex
from typing import Any, Final

from endwell.cli.base.options import Options
from endwell.cli.base.output import plain
from endwell.settings import masked

MOST_WAITS: Final = 3
"""Of so many things that a task waits for, commands are shown; a screen has an end."""
_VERDICTS: Final = ("done", "not-done", "abandon")


def proposals(asked: Options, answer: dict[str, Any]) -> list[str]:
    """For each thing that `why` names as possible, what to type to do it where it was asked about."""
    where = _where(asked)
    return [
        " ".join(["endwell", action, *words, *where])
        for action in answer["actions"]
        for words in _words(action, answer)
    ]


def _words(action: str, answer: dict[str, Any]) -> list[list[str]]:
    """What follows the action's name, once for each thing that it can be done to."""
    kind = action.split()[0]
    waits = [wait for wait in answer["waiting_for"] if wait["kind"] == kind][:MOST_WAITS]
    task = _quoted(answer["task_id"])
    if action == "signal":
        return [[task, _quoted(wait.get("name") or "NAME"), "JSON"] for wait in waits]
    if action == "tool answer":
        return [[_quoted(wait["id"]), "JSON"] for wait in waits]
    if action == "effect settle":
        return [[_quoted(wait["id"]), verdict] for wait in waits for verdict in _VERDICTS]
    if kind == "approval":
        return [[_quoted(wait["id"]), *_as_whom(wait["by"])] for wait in waits]
    return [[task, "--to", "NAME"]] if action == "task assign" else [[task]]


def _as_whom(names: list[str]) -> list[str]:
    """Where people are named who may decide, one of them must."""
    return ["--as", _quoted(names[0])] if names else []


def _where(asked: Options) -> list[str]:
    """The same place, if it was said here; what settings say of it holds for the next command too."""
    said = (
        ("--store", masked(asked.store) if asked.store else None),
        ("--namespace", asked.namespace),
        ("--app", asked.app),
    )
    return [word for option, value in said if value for word in (option, _quoted(value))]


def _quoted(text: str) -> str:
    return shlex.quote(plain(text))
