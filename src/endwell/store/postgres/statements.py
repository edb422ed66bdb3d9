"""PostgreSQL's named queries, and how those of one batch are joined into one statement.

The queries of a batch (tasks moved, tasks added, events, cards …) become data-modifying CTEs: one round trip,
and a transaction by itself.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from endwell.model.task import MOVING_FIELDS
from endwell.store.probe import ProbeSql
from endwell.store.queries import load

POSITIONS_DRAWN: Final = 4096
"""How many positions of the log are drawn at a time (migration 0007): the most that a statement uses."""
_MARKS: Final = {
    "{block}": str(POSITIONS_DRAWN),
    "{now}": "(SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)",
    "{moves}": ", ".join(f"{name} = m.{name}" for name in MOVING_FIELDS),
    "{t.key_is_free}": """(t.agent_key IS NULL OR NOT EXISTS (
        SELECT 1 FROM tasks h
        WHERE h.namespace = t.namespace AND h.agent = t.agent AND h.agent_key = t.agent_key
          AND h.agent_key IS NOT NULL AND h.turn_id IS NOT NULL AND h.id <> t.id))""",
    "{l.is_position}": """(l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = 'events'::regclass
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))""",
}


def _replace_marks(sql: str) -> str:
    for mark, text in _MARKS.items():
        sql = sql.replace(mark, text)
    return sql


QUERIES: Final = load("queries.sql", "postgres/queries.sql", parameter="$")
QUERIES.update({name: _replace_marks(sql) for name, sql in QUERIES.items()})


PROBES: Final = ProbeSql(
    QUERIES,
    mark="$",
    clock=_replace_marks("WITH clock AS MATERIALIZED (SELECT {now} + $1::bigint AS now) SELECT"),
    now="(SELECT now FROM clock)",
)


@lru_cache(maxsize=1000)
def join_queries(names: tuple[str, ...]) -> str:
    """Join queries into one statement, their parameters one after another.

    With `move_tasks` among them there is one more parameter: how many rows it must move. If another
    transaction has moved one of them, the whole statement fails (migration 0016).
    """
    pieces, start = [], 0
    for name in names:
        sql, start = _renumber_parameters(QUERIES[name], start)
        pieces.append(f"{name} AS (\n{sql}\n)")
    guard = f"endwell_require_moved(count(*), ${start + 1}) FROM move_tasks" if "move_tasks" in names else "1"
    return f"WITH {', '.join(pieces)}\nSELECT {guard}"


def _renumber_parameters(sql: str, start: int) -> tuple[str, int]:
    """Number a query's parameters after `start`; return it with the last number."""
    numbers = [int(n) for n in re.findall(r"\$(\d+)", sql)]
    return re.sub(r"\$(\d+)", lambda m: f"${int(m[1]) + start}", sql), start + max(numbers)
