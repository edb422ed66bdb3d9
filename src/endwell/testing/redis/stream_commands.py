"""The commands of the simulated server about entries of streams, and the product's scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from endwell.redis_client import Refusal
from endwell.streams.dead_letter_stream import PUBLISH_LETTER
from endwell.streams.task_streams import PUBLISH_RESULTS
from endwell.testing.redis.keyspace import SYNTAX, Args, Command, KeySpace, parse_number
from endwell.testing.redis.stream import Stream, parse_id, write_entry, write_id


def _add(server: KeySpace, args: Args) -> bytes:
    key, wanted, fields = args[0], args[1], args[2:]
    if wanted != b"*":
        raise Refusal("ERR the simulated server makes ids itself")
    if not fields or len(fields) % 2:
        raise Refusal("ERR wrong number of arguments for 'xadd' command")
    stream = server.find_stream(key)
    if stream is None:
        stream = server.keys[key] = Stream()
    entry_id = stream.add(server.now_ms, fields)
    if not server.accepts(key, fields):
        stream.remove([entry_id])
    server.wake(key)
    return write_id(entry_id)


def _count(server: KeySpace, args: Args) -> int:
    stream = server.find_stream(args[0])
    return 0 if stream is None else len(stream.entries)


def _read_range(server: KeySpace, args: Args) -> list[Any]:
    stream = server.find_stream(args[0])
    first, last = parse_id(args[1]), parse_id(args[2], number=2**64 - 1)
    limit = parse_number(args[4]) if len(args) > 4 else None
    found = [] if stream is None else [write_entry(*each) for each in stream.entries_between(first, last)]
    return found[:limit]


def _delete(server: KeySpace, args: Args) -> int:
    stream = server.find_stream(args[0])
    ids = [parse_id(each) for each in args[1:]]
    return 0 if stream is None else stream.remove(ids)


def _trim(server: KeySpace, args: Args) -> int:
    stream = server.find_stream(args[0])
    kind, *words = args[1:]
    threshold = words.pop()
    if kind.upper() not in (b"MAXLEN", b"MINID") or words not in ([], [b"~"], [b"="]):
        raise Refusal(SYNTAX)
    return 0 if stream is None else stream.trim(kind.upper(), threshold)


def _publish_results(server: KeySpace, keys: Args, args: Args) -> int:
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


def _publish_letter(server: KeySpace, keys: Args, args: Args) -> bytes | None:
    index, stream = keys
    if server.execute(("HMGET", index, args[0])) != [None]:
        return None
    letter_id: bytes = server.execute(("XADD", stream, "*", *args[1:]))
    server.execute(("HSET", index, args[0], letter_id))
    return letter_id


_SCRIPTS: Final[dict[bytes, Callable[[KeySpace, Args, Args], Any]]] = {
    PUBLISH_RESULTS.encode(): _publish_results,
    PUBLISH_LETTER.encode(): _publish_letter,
}


def _run_script(server: KeySpace, args: Args) -> Any:
    """EVAL: the product's scripts, known by their text; each runs in one step."""
    count = int(args[1])
    script = _SCRIPTS.get(args[0])
    if script is None:
        raise Refusal("ERR the simulated server does not know this script")
    return script(server, args[2 : 2 + count], args[2 + count :])


STREAM_COMMANDS: Final[dict[str, Command]] = {
    "XADD": _add,
    "XLEN": _count,
    "XRANGE": _read_range,
    "XDEL": _delete,
    "XTRIM": _trim,
    "EVAL": _run_script,
}
