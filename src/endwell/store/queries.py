"""Named queries: `-- name: x` heads each one, with a sentence that says what it is for.

They are written with `$1` parameters; SQLite reads them as `?1`. Words in brackets behind the name say how a
store runs the query: `short` ones take a few index seeks, for any number of tasks (`short if few` ones for a
short list of ids), and SQLite answers them on the event loop; `steady` ones are planned once on PostgreSQL,
because the same index serves all parameters.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, TypeVar

from endwell.model.approval import APPROVAL_FIELDS
from endwell.model.cursor import CURSOR_FIELDS
from endwell.model.effect import EFFECT_FIELDS
from endwell.model.message import INBOX_FIELDS, MESSAGE_FIELDS
from endwell.model.session import SESSION_FIELDS
from endwell.model.task import FIELDS, MOVING_FIELDS
from endwell.model.wait import WAIT_FIELDS
from endwell.store.log import EVENT_FIELDS

T = TypeVar("T")


class NamedQueries(ABC):
    """Runs named queries that change nothing."""

    @abstractmethod
    async def _rows(self, name: str, *parameters: Any) -> Sequence[Sequence[Any]]:
        """Return the rows of a named query."""

    async def _read_all(self, kind: Callable[..., T], name: str, *parameters: Any) -> list[T]:
        """Return one value of a kind for each row."""
        return [kind(*row) for row in await self._rows(name, *parameters)]

    async def _read_first(self, kind: Callable[..., T], name: str, *parameters: Any) -> T | None:
        """Return the value of the first row, if there is one."""
        rows = await self._rows(name, *parameters)
        return kind(*rows[0]) if rows else None

    async def _read_column(self, name: str, *parameters: Any) -> list[Any]:
        """Return the first value of each row."""
        return [row[0] for row in await self._rows(name, *parameters)]

    async def _read_value(self, name: str, *parameters: Any) -> Any:
        """Return the first value of the first row, which there always is."""
        return (await self._rows(name, *parameters))[0][0]

    async def _read_pairs(self, name: str, *parameters: Any) -> dict[Any, Any]:
        """Return rows of two as a dictionary."""
        return {row[0]: row[1] for row in await self._rows(name, *parameters)}


class Queries(dict[str, str]):
    """SQL by name; `marked` has the names of the queries that are marked with a word."""

    def __init__(self) -> None:
        self.marked: defaultdict[str, set[str]] = defaultdict(set)


def load(*paths: str, parameter: str) -> Queries:
    """Return the queries of these files; `parameter` is how the dialect marks one, `?` or `$`."""
    found = Queries()
    for path in paths:
        text = (resources.files("endwell.store") / path).read_text()
        for block in re.split(r"^-- name: ", text, flags=re.MULTILINE)[1:]:
            head, _, body = block.partition("\n")
            name, _, words = head.rstrip(")").partition(" (")
            sql = "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip()
            sql = sql.replace("{a.values}", _LIST_VALUES[parameter])
            found[name] = re.sub(r"\$(\d+)", rf"{parameter}\1", _with_columns(sql)).rstrip(";")
            for word in words.split(", "):
                found.marked[word].add(name)
    return found


def _with_columns(sql: str) -> str:
    for mark, text in _COLUMNS.items():
        sql = sql.replace(mark, text)
    return sql


def _parameter_marks(count: int) -> str:
    return ", ".join(f"${n}" for n in range(1, count + 1))


_LIST_VALUES = {"?": "json_each($2) a", "$": "unnest($2::text[]) AS a(value)"}
"""How a dialect reads the values of parameter 2, a list."""

_COLUMNS = {
    "{t.columns}": ", ".join(f"t.{name}" for name in FIELDS),
    "{task_columns}": ", ".join(FIELDS),
    "{task_marks}": _parameter_marks(len(FIELDS)),
    "{task_moves}": ", ".join(f"{name} = ${n}" for n, name in enumerate(MOVING_FIELDS, 4)),
    "{m.moves}": ", ".join(f"{name} = m.column{n}" for n, name in enumerate(MOVING_FIELDS, 4)),
    "{move_marks}": _parameter_marks(len(MOVING_FIELDS) + 3),
    "{event_columns}": ", ".join(EVENT_FIELDS),
    "{e.columns}": ", ".join(f"e.{name}" for name in EVENT_FIELDS),
    "{event_marks}": _parameter_marks(len(EVENT_FIELDS)),
    "{effect_columns}": ", ".join(EFFECT_FIELDS),
    "{effect_marks}": _parameter_marks(len(EFFECT_FIELDS)),
    "{effect_moves}": ", ".join(f"{name} = ${n}" for n, name in enumerate(EFFECT_FIELDS[2:], 3)),
    "{e.moves}": ", ".join(f"{name} = m.{name}" for name in EFFECT_FIELDS[2:]),
    "{message_columns}": ", ".join(MESSAGE_FIELDS),
    "{i.columns}": ", ".join(f"i.{name}" for name in MESSAGE_FIELDS),
    "{inbox_columns}": ", ".join(INBOX_FIELDS),
    "{message_marks}": _parameter_marks(len(MESSAGE_FIELDS)),
    "{a.columns}": ", ".join(f"a.{name}" for name in APPROVAL_FIELDS),
    "{wait_columns}": ", ".join(WAIT_FIELDS),
    "{w.columns}": ", ".join(f"w.{name}" for name in WAIT_FIELDS),
    "{approval_columns}": ", ".join(APPROVAL_FIELDS),
    "{session_columns}": ", ".join(SESSION_FIELDS),
    "{s.columns}": ", ".join(f"s.{name}" for name in SESSION_FIELDS),
    "{session_marks}": _parameter_marks(len(SESSION_FIELDS)),
    "{cursor_columns}": ", ".join(CURSOR_FIELDS),
    "{cursor_marks}": _parameter_marks(len(CURSOR_FIELDS)),
    "{cursor_moves}": ", ".join(f"{name} = excluded.{name}" for name in CURSOR_FIELDS[2:]),
}
