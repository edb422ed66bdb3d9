"""Standard streams that write all of their output.

Under PYTHONUNBUFFERED=1 Python ignores how many bytes one write took, and loses the rest; a non-blocking pipe
(the parent process chooses that) makes a buffered stream fail in the middle of a document.
"""

from __future__ import annotations

import io
import select
import sys
from typing import Any


def replace_standard_streams() -> None:
    """Make `sys.stdout` and `sys.stderr` write everything that they are given."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.flush()
            setattr(sys, name, _whole(stream))


def _whole(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    is_unbuffered = isinstance(stream.buffer, io.RawIOBase)
    return io.TextIOWrapper(
        io.BufferedWriter(_WholeWrites(stream.fileno(), "wb", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering or is_unbuffered,
    )


class _WholeWrites(io.FileIO):
    """A file whose `write` returns only after every byte was taken, however slow the reader is."""

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            count = super().write(view[done:])
            if count is None:  # a non-blocking file descriptor that is full
                select.select([], [self], [])
            else:
                done += count
        return done
