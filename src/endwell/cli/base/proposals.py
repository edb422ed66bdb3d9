"""What a person can do about a task now, as commands to paste into a shell."""

from __future__ import annotations

import shlex
from typing import Any, Final

from endwell.cli.base.options import Options
from endwell.cli.base.output import one_line
from endwell.settings import mask_url

MOST_WAITS: Final = 3
"""Waits of one kind for which commands are shown."""
_VERDICTS: Final = ("done", "not-done", "abandon")


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
