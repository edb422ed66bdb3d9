"""Values of the command line: durations, payloads, and files of payloads."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, cast

import click

from endwell.errors import BadInput, UsageError
from endwell.model import content

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_KEPT_IN_MEMORY = 16 * 1024 * 1024


def parse_duration(text: str) -> float:
    """Seconds, or a number with s, m, h or d. The submission checks its range."""
    unit = _UNITS.get(text.strip()[-1:].lower())
    try:
        return float(text.strip()[:-1]) * unit if unit else float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a duration; write 90, 90s, 1.5m, 2h or 3d") from None


def payload_of(text: str | None) -> Any:
    """The payload of an argument: JSON itself, `@FILE`, or `-` for stdin. None without an argument."""
    if text is None:
        return None
    if text == "-":
        return content.decode(sys.stdin.buffer.read(content.MAX_WRITTEN_BYTES + 1))
    return content.decode(file_content(text[1:]) if text.startswith("@") else text)


def file_content(path: str) -> bytes:
    """A file's bytes, at most one more than can be accepted."""
    with open_file(path) as file:
        return file.read(content.MAX_WRITTEN_BYTES + 1)


def open_file(path: str) -> IO[bytes]:
    """A file to read; an error names it."""
    try:
        return Path(path).open("rb")
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise UsageError(problem, hint="check the path", field="file") from error


def open_many(text: str) -> IO[bytes]:
    """The file of `@FILE` or `-`, which can be read twice."""
    if text.startswith("@"):
        return open_file(text[1:])
    if text != "-":
        raise UsageError("name a file as @FILE.jsonl, or - for stdin", field="source")
    return keep_stdin()


def keep_stdin() -> IO[bytes]:
    """Standard input as a file that can be read twice."""
    kept = cast("IO[bytes]", SpooledTemporaryFile(max_size=_KEPT_IN_MEMORY))  # noqa: SIM115 (closed by caller)
    shutil.copyfileobj(sys.stdin.buffer, kept)
    kept.seek(0)
    return kept


def numbered_values(file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    """The number and JSON value of each line that is not empty, from the beginning."""
    file.seek(0)
    for number, line in enumerate(iter(lambda: file.readline(content.MAX_WRITTEN_BYTES + 2), b""), 1):
        if line.strip():
            yield number, _value_in(line.rstrip(b"\r\n"), number)


def _value_in(line: bytes, number: int) -> Any:
    try:
        return content.decode(line)
    except BadInput as refusal:
        raise in_line(number, refusal) from refusal


def in_line(number: int, refusal: BadInput) -> BadInput:
    """The refusal with the number of its line."""
    return BadInput(
        f"line {number}: {refusal.message}", code=refusal.code, hint=refusal.hint, field=refusal.field
    )
