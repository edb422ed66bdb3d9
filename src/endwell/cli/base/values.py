"""Values on the command line: durations, payloads, and files of payloads."""

from __future__ import annotations

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


def duration(text: str) -> float:
    """Seconds, or a number with s, m, h or d. Whether it makes sense is for the submission to say."""
    unit = _UNITS.get(text.strip()[-1:].lower())
    try:
        return float(text.strip()[:-1]) * unit if unit else float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a duration; write 90, 90s, 1.5m, 2h or 3d") from None


def payload_of(text: str | None) -> Any:
    """The payload that an argument means: JSON itself, `@FILE`, or `-` for stdin. None when absent."""
    if text is None:
        return None
    if text == "-":
        return content.decode(sys.stdin.buffer.read(content.MAX_WRITTEN_BYTES + 1))
    return content.decode(file_content(text[1:]) if text.startswith("@") else text)


def file_content(path: str) -> bytes:
    """A file's bytes, as many as can be accepted and one more."""
    with _opened(path) as file:
        return file.read(content.MAX_WRITTEN_BYTES + 1)


def _opened(path: str) -> IO[bytes]:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", field="file") from error


def many_opened(text: str) -> IO[bytes]:
    """What `@FILE` or `-` means, as a file that can be read twice."""
    if text.startswith("@"):
        return _opened(text[1:])
    if text != "-":
        raise UsageError("name a file as @FILE.jsonl, or - for stdin", field="source")
    kept = cast("IO[bytes]", SpooledTemporaryFile(max_size=_KEPT_IN_MEMORY))  # noqa: SIM115 (closed by caller)
    while chunk := sys.stdin.buffer.read(1024 * 1024):
        kept.write(chunk)
    kept.seek(0)
    return kept


def numbered_values(file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    """Each line's number and JSON value, from the beginning; empty lines are passed over."""
    file.seek(0)
    number = 0
    while line := file.readline(content.MAX_WRITTEN_BYTES + 2):
        number += 1
        if line.strip():
            yield number, _value_in(line.rstrip(b"\r\n"), number)


def _value_in(line: bytes, number: int) -> Any:
    try:
        return content.decode(line)
    except BadInput as refusal:
        raise in_line(number, refusal) from refusal


def in_line(number: int, refusal: BadInput) -> BadInput:
    """The refusal, saying which line it is about."""
    return BadInput(
        f"line {number}: {refusal.message}", code=refusal.code, hint=refusal.hint, field=refusal.field
    )
