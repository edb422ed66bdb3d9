"""The Redis user that docs/protocol.md recommends for foreign workers: enough to work, and no more."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from endwell.redis_client import RedisClient, Refusal
from tests.patience import PATIENCE_SECONDS
from tests.streams.programs import EXAMPLES, Programs, known
from tests.streams.streamed import Streamed
from tests.streams.test_protocol import PAGE


@pytest.fixture
async def restricted_url(streamed: Streamed, redis_url: str) -> AsyncIterator[str]:
    """The URL of a user as the page has it, with the test's own prefix before each key."""
    line = re.search(r"^ACL SETUSER worker .*$", PAGE, re.MULTILINE)
    assert line is not None
    user = f"worker-{streamed.world.namespace}"
    words = shlex.split(line[0].replace("~", f"~{streamed.names.prefix}"), posix=False)
    rules = re.findall(r"\([^)]*\)|\S+", " ".join(words[3:]))
    await streamed.redis.ask("ACL", "SETUSER", user, *rules)
    server = urlsplit(redis_url)
    yield f"redis://{user}:change-me@{server.hostname}:{server.port}"
    await streamed.redis.ask("ACL", "DELUSER", user)


async def test_foreign_worker_does_tasks_as_the_recommended_user(
    streamed: Streamed, restricted_url: str, programs: Programs
) -> None:
    await streamed.supervised()
    worker = programs.start(
        sys.executable, str(EXAMPLES / "worker.py"), restricted_url, streamed.names.prefix
    )
    await known(streamed, "resize")
    handle = await streamed.world.submitted("resize", {"width": 640})
    assert await handle.result(PATIENCE_SECONDS) == {"width": 320}
    await streamed.nothing_pending()
    worker.terminate()
    assert worker.wait(PATIENCE_SECONDS) == 0


async def test_recommended_user_can_forge_no_entry_and_no_grant(
    streamed: Streamed, restricted_url: str
) -> None:
    await streamed.orchestrator()
    names = streamed.names
    connection = RedisClient(restricted_url)
    refused = (
        ("XADD", names.task, "*", "task_id", "t"),
        ("XDEL", names.task, "1-1"),
        ("XTRIM", names.result, "MAXLEN", 0),
        ("XRANGE", names.result, "-", "+"),
        ("XRANGE", names.dlq, "-", "+"),
        ("SET", names.grant_key("t.t1", 1), "mine"),
        ("DEL", names.grant_key("t.t1", 1)),
        ("SET", names.leader, "me"),
        ("HSET", names.settings, "VISIBILITY_TIMEOUT_S", 1),
        ("FLUSHALL",),
        ("CONFIG", "GET", "*"),
    )
    for words in refused:
        with pytest.raises(Refusal, match=r"NOPERM|permission"):
            await connection.ask(*words)
    await connection.ask("XADD", names.result, "*", "status", "leaving", "worker_id", "w-1")
    await connection.close()
