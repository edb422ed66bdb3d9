"""The log of simulated processes: captured for the oracle, shown to no one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class CapturedLog(logging.Handler):
    """Keeps the lines that must not be there: with a secret in them, or about an unexpected error."""

    def __init__(self, secret: str) -> None:
        super().__init__(logging.WARNING)
        self._secret = secret
        self.leaks: list[str] = []
        self.surprises: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if self._secret in message or (error is not None and self._secret in str(error)):
            self.leaks.append(f"{record.name}: {message}")
        if error is not None:
            self.surprises.append(f"{record.name}: {message}: {error!r}")


@contextmanager
def capture_log(log: CapturedLog) -> Iterator[None]:
    """Send warnings and errors of the product to this log alone."""
    logger = logging.getLogger("endwell")
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logger.addHandler(log)
    try:
        yield
    finally:
        logger.removeHandler(log)
        logger.propagate = propagate
        logger.setLevel(level)
