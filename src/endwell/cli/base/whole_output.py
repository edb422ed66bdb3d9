"""Standard streams that write all of their output.

Under PYTHONUNBUFFERED=1 Python ignores how many bytes a write took, and loses the rest. A non-blocking pipe,
which the parent process chooses, makes a buffered stream fail in the middle of a document.
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Any

from endwell.errors import UsageError


def replace_standard_streams() -> None:
    """Make `sys.stdout` and `sys.stderr` write everything.

    A closed stream (`>&-`) is opened to /dev/null: else a file or socket would get its number and its output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.flush()
            setattr(sys, name, _whole_stream(stream))


def _whole_stream(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    is_unbuffered = isinstance(stream.buffer, io.RawIOBase)
    return io.TextIOWrapper(
        io.BufferedWriter(_WholeWrites(stream.fileno(), "wb", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering or is_unbuffered,
    )


class _WholeWrites(io.FileIO):
    """A file whose `write` returns only after every byte was written."""

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            try:
                count = super().write(view[done:])
            except BrokenPipeError:
                raise
            except OSError as error:
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # what follows must not fail again
                problem = f"the output cannot be written: {error.strerror}"
                raise UsageError(problem, hint="the command may have done its work before that") from error
            if count is None:  # a non-blocking file descriptor that is full
                select.select([], [self], [])
            else:
                done += count
        return done
