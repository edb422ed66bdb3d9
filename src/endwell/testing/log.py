"""What the processes of a simulation write to their logs: nobody reads it but the oracle."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class Overheard(logging.Handler):
    """Keeps what must not be there: something secret, or an error that nobody expected."""

    def __init__(self, secret: str) -> None:
        super().__init__(logging.WARNING)
        self._secret = secret
        self.leaks: list[str] = []
        self.surprises: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if self._secret in said or (error is not None and self._secret in str(error)):
            self.leaks.append(f"{record.name}: {said}")
        if error is not None:
            self.surprises.append(f"{record.name}: {said}: {error!r}")


@contextmanager
def overheard(log: Overheard) -> Iterator[None]:
    """What goes wrong on purpose is not worth a line on anybody's screen."""
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
