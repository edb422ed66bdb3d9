"""From an error to what the caller sees: one shape, one exit code, a traceback only when asked for."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple

import click

from endwell.cli.base.interruption import is_interruption
from endwell.errors import EndwellError, StoreError, UsageError

INTERRUPTED = 130


class Manner(NamedTuple):
    """How errors are told. Read off the words themselves: the error may be that they cannot be parsed."""

    json: bool
    debug: bool

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Manner:
        words = list(arguments)
        words = words[: words.index("--")] if "--" in words else words
        return cls("--json" in words, "--debug" in words)


def tell(error: BaseException, manner: Manner) -> int:
    """Tell the error where it belongs; the exit code it comes to."""
    if isinstance(error, BrokenPipeError):
        return _reader_left()
    if is_interruption(error) or isinstance(error, click.Abort):
        say("interrupted")
        return INTERRUPTED
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if manner.debug:
        say("".join(traceback.format_exception(error)).rstrip())
    known = _known(error)
    _show(known, manner)
    return known.exit_code


def refuse_what_is_no_text(arguments: Sequence[str]) -> None:
    """Bytes that are no UTF-8 reach Python as halves of surrogate pairs, which nothing can store or show."""
    for number, word in enumerate(arguments, start=1):
        if not word.isascii() and any("\ud800" <= letter <= "\udfff" for letter in word):
            raise UsageError(f"argument {number} is not UTF-8 text", hint="put binary content into a file")


def _reader_left() -> int:
    """Whoever read our output has seen enough; Python must not complain about it on its way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _known(error: BaseException) -> EndwellError:
    if isinstance(error, EndwellError):
        return error
    if isinstance(error, click.ClickException):
        return _usage(error)
    if isinstance(error, ModuleNotFoundError) and error.name == "asyncpg":
        return UsageError("PostgreSQL needs asyncpg", hint="pip install 'endwell[postgres]'", field="store")
    if type(error).__module__ == "msgspec":  # what users send is read by `content`, which says more
        hint = "`endwell events verify` says which tasks were changed"
        return StoreError(f"the store holds what cannot be read: {error}", code="store_unreadable", hint=hint)
    hint = "this is a bug in Endwell; run it again with --debug to see where"
    return EndwellError(f"{type(error).__name__}: {error}", hint=hint)


def _usage(error: click.ClickException) -> UsageError:
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and error.ctx is not None:
        say(error.ctx.get_help())
        return UsageError("which command?", hint=f"{error.ctx.command_path} --help")
    place = getattr(error, "ctx", None)
    parameter = getattr(error, "param", None)
    return UsageError(
        error.format_message(),
        hint=f"{place.command_path if place else 'endwell'} --help",
        field=parameter.name if parameter is not None else None,
    )


def say(text: str) -> None:
    """A remark on stderr. What it takes to write one is imported only when there is one."""
    from endwell.cli.base import output

    output.say(text)


def _show(error: EndwellError, manner: Manner) -> None:
    from endwell.cli.base import output

    if manner.json:
        output.write_json({"error": error.as_dict()})
    say(f"error: {error.message} ({error.code})")
    if error.hint:
        say(f"hint: {error.hint}")
