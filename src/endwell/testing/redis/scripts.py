"""The product's scripts, as the simulated server runs them: each by its text, in one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from endwell.redis_client import Refusal
from endwell.streams.dead_letter_stream import PUBLISH_LETTER
from endwell.streams.task_streams import PUBLISH_RESULTS

if TYPE_CHECKING:
    from endwell.testing.redis.server import Args, Server


def _publish_results(server: Server, keys: Args, args: Args) -> int:
    cursor, stream = keys
    if server.execute(("GET", cursor)) != args[0]:
        return 0
    words = args[2:]
    while words:
        count = int(words[0])
        server.execute(("XADD", stream, "*", *words[1 : 1 + count]))
        words = words[1 + count :]
    server.execute(("SET", cursor, args[1]))
    return 1


def _publish_letter(server: Server, keys: Args, args: Args) -> bytes | None:
    marks, stream = keys
    if server.execute(("HMGET", marks, args[0])) != [None]:
        return None
    place: bytes = server.execute(("XADD", stream, "*", *args[1:]))
    server.execute(("HSET", marks, args[0], place))
    return place


_SCRIPTS: Final[dict[bytes, Callable[[Server, Args, Args], Any]]] = {
    PUBLISH_RESULTS.encode(): _publish_results,
    PUBLISH_LETTER.encode(): _publish_letter,
}


def run_script(server: Server, args: Args) -> Any:
    """EVAL; a script that is not the product's is refused."""
    count = int(args[1])
    run = _SCRIPTS.get(args[0])
    if run is None:
        raise Refusal("ERR the simulated server does not know this script")
    return run(server, args[2 : 2 + count], args[2 + count :])
