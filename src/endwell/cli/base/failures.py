"""Turn an error into what the caller sees: one shape, one exit code, a traceback only with --debug."""

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


class ErrorStyle(NamedTuple):
    """How errors are shown. Read off the words themselves: the error may be that they cannot be parsed."""

    json: bool
    debug: bool

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> ErrorStyle:
        words = list(arguments)
        words = words[: words.index("--")] if "--" in words else words
        return cls("--json" in words, "--debug" in words)


def report_error(error: BaseException, style: ErrorStyle) -> int:
    """Show the error; return its exit code."""
    if isinstance(error, BrokenPipeError):  # the reader has seen enough; Python must not complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if is_interruption(error) or isinstance(error, click.Abort):
        write_remark("interrupted")
        return INTERRUPTED
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if style.debug:
        write_remark("".join(traceback.format_exception(error)).rstrip())
    known = _as_endwell_error(error)
    if style.json:
        from endwell.cli.base import output

        output.write_json({"error": known.as_dict()})
    write_remark(f"error: {known.message} ({known.code})")
    if known.hint:
        write_remark(f"hint: {known.hint}")
    return known.exit_code


def refuse_invalid_text(arguments: Sequence[str]) -> None:
    """Bytes that are not UTF-8 reach Python as lone surrogates, which cannot be stored or shown."""
    for number, word in enumerate(arguments, start=1):
        if not word.isascii() and any("\ud800" <= letter <= "\udfff" for letter in word):
            raise UsageError(f"argument {number} is not UTF-8 text", hint="put binary content into a file")


def _as_endwell_error(error: BaseException) -> EndwellError:
    if isinstance(error, EndwellError):
        return error
    if isinstance(error, click.ClickException):
        return _usage_error(error)
    if isinstance(error, ModuleNotFoundError) and error.name == "asyncpg":
        return UsageError("PostgreSQL needs asyncpg", hint="pip install 'endwell[postgres]'", field="store")
    if type(error).__module__ == "msgspec":  # users' input is decoded by `content`, whose errors say more
        hint = "`endwell events verify` lists the tasks that were changed"
        return StoreError(f"the store holds unreadable data: {error}", code="store_unreadable", hint=hint)
    hint = "this is a bug in Endwell; run it again with --debug to see where"
    return EndwellError(f"{type(error).__name__}: {error}", hint=hint)


def _usage_error(error: click.ClickException) -> UsageError:
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and error.ctx is not None:
        write_remark(error.ctx.get_help())
        return UsageError("a command is missing", hint=f"{error.ctx.command_path} --help")
    ctx = getattr(error, "ctx", None)
    parameter = getattr(error, "param", None)
    return UsageError(
        error.format_message(),
        hint=f"{ctx.command_path if ctx else 'endwell'} --help",
        field=parameter.name if parameter is not None else None,
    )


def write_remark(text: str) -> None:
    """A remark on stderr. Imports what that needs only now, so that the command line starts fast."""
    from endwell.cli.base import output

    output.write_remark(text)
