"""The limit on PostgreSQL: the same work as a bare batched loop on one table and one connection.

No log, no hash, no fence, no clock, no other process: insert, mark as claimed, keep the result. A batch
is one statement, and the last batch is handed in by the statement that claims the next.
"""

from __future__ import annotations

from typing import Any, Final

from endwell.bench.bare_sqlite import BATCH, GIVES, Timer
from endwell.store.postgres.connection import COMMITTING, connect

_SCHEMA: Final = """
DROP TABLE IF EXISTS endwell_bare;
CREATE TABLE endwell_bare (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    status text NOT NULL, payload text NOT NULL, result text
);
CREATE INDEX ON endwell_bare (id) WHERE status = 'queued';
"""
_INSERT: Final = "INSERT INTO endwell_bare (status, payload) SELECT 'queued', unnest($1::text[])"
_TURN: Final = """
WITH done AS (
    UPDATE endwell_bare j SET status = 'succeeded', result = d.result
    FROM unnest($1::bigint[], $2::text[]) AS d(id, result) WHERE j.id = d.id
), ready AS (
    SELECT id FROM endwell_bare WHERE status = 'queued' ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED
)
UPDATE endwell_bare j SET status = 'running' FROM ready WHERE j.id = ready.id RETURNING j.id, j.payload
"""
_ONE_ROUND_TRIP: Final = "INSERT INTO endwell_bare (status, payload) VALUES ('queued', $1)"


async def measure_rates(
    url: str, timer: Timer, *, one_by_one: int, bulk: int
) -> dict[str, tuple[float, int]]:
    """Rates per second and what they rest on, named as Endwell's own rows."""
    connection = await connect(url, COMMITTING)
    try:
        await connection.execute(_SCHEMA)
        rates = (
            await _insert_single(connection, timer, one_by_one),
            await _insert_bulk(connection, timer, bulk),
            await _drain_jobs(connection, timer, one_by_one + bulk),
        )
        await connection.execute("DROP TABLE endwell_bare")
    finally:
        await connection.close()
    return dict(zip(GIVES, zip(rates, (one_by_one, bulk, one_by_one + bulk), strict=True), strict=True))


async def _insert_single(connection: Any, timer: Timer, count: int) -> float:
    begin = timer()
    for number in range(count):
        await connection.execute(_ONE_ROUND_TRIP, str(number))
    return count / (timer() - begin)


async def _insert_bulk(connection: Any, timer: Timer, count: int) -> float:
    begin = timer()
    for start in range(0, count, BATCH):
        await connection.execute(_INSERT, [str(number) for number in range(start, min(start + BATCH, count))])
    return count / (timer() - begin)


async def _drain_jobs(connection: Any, timer: Timer, count: int) -> float:
    begin = timer()
    ids: list[int] = []
    results: list[str] = []
    while True:
        taken = await connection.fetch(_TURN, ids, results, BATCH)
        if not taken:
            return count / (timer() - begin)
        ids, results = [row[0] for row in taken], [row[1] for row in taken]
