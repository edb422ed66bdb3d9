"""The log of a process on stderr: text for people, JSON for machines; with task and attempt ids."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

from endwell.cli.base.options import Options
from endwell.cli.base.output import without_secrets
from endwell.errors import BadSetting
from endwell.model.content import printable_text
from endwell.model.moments import SECOND, moment
from endwell.runtime.current import CURRENT_TURN

LEVEL_VARIABLE = "ENDWELL_LOG"
IDS = ("task_id", "attempt_id")
_LEVELS = ("debug", "info", "warning", "error")


def configure_logs(options: Options) -> None:
    """Set one handler for all logs of this process, agents' own loggers included."""
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if options.log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers = [other for other in root.handlers if not isinstance(other, StderrHandler)] + [handler]
    root.setLevel(_level_of(options.verbose))


class StderrHandler(logging.Handler):
    """Writes to the stderr of the moment, which tests replace."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def log_services() -> None:
    """Log what services do, unless the environment sets another level."""
    root = logging.getLogger()
    if LEVEL_VARIABLE not in os.environ and root.level > logging.INFO:
        root.setLevel(logging.INFO)


def _level_of(verbose: int) -> int:
    if verbose:
        return logging.INFO if verbose == 1 else logging.DEBUG
    name = os.environ.get(LEVEL_VARIABLE, "warning").lower()
    if name not in _LEVELS:
        raise BadSetting(f"{LEVEL_VARIABLE} must be one of {', '.join(_LEVELS)}, not {name!r}")
    return getattr(logging, name.upper())  # type: ignore[no-any-return]


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": _moment_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
            **_ids_of(record),
        }
        if record.exc_info:
            line["traceback"] = without_secrets(self.formatException(record.exc_info))
        return json.dumps(line)


class TextFormatter(logging.Formatter):
    """One line per record, and its traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        ids = "".join(f" {name}={value}" for name, value in _ids_of(record).items())
        text = f"{_moment_of(record)} {record.levelname:<7} {record.name}: {record.getMessage()}{ids}"
        text = printable_text(without_secrets(text))
        if record.exc_info:
            details = without_secrets(self.formatException(record.exc_info))
            text += "\n" + printable_text(details, keep_lines=True)
        return text


def _moment_of(record: logging.LogRecord) -> str:
    return moment(int(record.created * SECOND)) or ""


def _ids_of(record: logging.LogRecord) -> dict[str, str]:
    """The ids of the record, else those of the turn that logged it."""
    turn = {name: str(value) for name, value in zip(IDS, CURRENT_TURN.get() or (), strict=False)}
    own = {name: str(getattr(record, name)) for name in IDS if getattr(record, name, None)}
    return {**turn, **own}
