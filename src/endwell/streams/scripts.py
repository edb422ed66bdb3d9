"""Scripts for steps that depend on what is on the server: two orchestrators may write at once.

A supervisor that was frozen wakes up in the middle of what another one has done since. The server compares
and writes in one step, so that nothing is published twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from endwell.redis_client import RedisClient, Word
from endwell.streams.protocol import Names

PUBLISH_RESULTS: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local at = 3
while ARGV[at] do
  local last = at + tonumber(ARGV[at])
  redis.call('XADD', KEYS[2], '*', unpack(ARGV, at + 1, last))
  at = last + 1
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""
PUT_LETTER: Final = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return false end
local place = redis.call('XADD', KEYS[2], '*', unpack(ARGV, 2))
redis.call('HSET', KEYS[1], ARGV[1], place)
return place
"""


async def publish_results(
    line: RedisClient, names: Names, entries: Sequence[Sequence[Word]], *, after: str, cursor: str
) -> bool:
    """Add results and move the cursor; False if another orchestrator has moved it."""
    words = [word for entry in entries for word in (len(entry), *entry)]
    keys = (names.results_cursor, names.result)
    return bool(await line.ask("EVAL", PUBLISH_RESULTS, len(keys), *keys, after, cursor, *words))


async def put_letter(line: RedisClient, names: Names, task_id: str, entry: Sequence[Word]) -> bool:
    """Add a dead letter and mark where it is; False if its task has one there."""
    keys = (names.letters, names.dlq)
    return await line.ask("EVAL", PUT_LETTER, len(keys), *keys, task_id, *entry) is not None
