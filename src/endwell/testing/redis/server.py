"""The server: every command that the product sends, with the answers that Redis and Valkey give.

`tests/streams/test_server_contract.py` holds it to what a real server answers. A read that would wait gives
`BlockedRead`; whoever carries the command waits then, and is told when there is something.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from endwell.redis_client import Refusal, Word
from endwell.testing.redis import groups
from endwell.testing.redis.scripts import run_script
from endwell.testing.redis.stream import Stream, parsed, shown, written
from endwell.testing.redis.waiting import BlockedRead

Args = list[bytes]
Hash = dict[bytes, bytes]
T = TypeVar("T", Stream, dict[bytes, bytes], bytes)

LONGEST_TTL_MS: Final = 2**53
WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
SYNTAX: Final = "ERR syntax error"


class Server:
    """`execute(words)` is one command. `clock` gives milliseconds, and belongs to the server alone.

    `accepts` is told of every new entry; if it says no, the entry is lost although its id was told.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.offset_ms = 0
        self.keys: dict[bytes, Any] = {}
        self.expiry: dict[bytes, int] = {}
        self.waiting: list[BlockedRead] = []
        self.accepts: Callable[[bytes, list[bytes]], bool] = lambda key, fields: True
        self.commands = 0

    @property
    def now_ms(self) -> int:
        return self._clock() + self.offset_ms

    def execute(self, words: Sequence[Word]) -> Any:
        """The answer; Refusal is raised as the server's error."""
        self.commands += 1
        args = [as_bytes(word) for word in words]
        name = args[0].upper().decode()
        run = COMMANDS.get(name)
        if run is None:
            raise Refusal(f"ERR unknown command '{name}'")
        try:
            return run(self, args[1:])
        except IndexError:
            raise Refusal(f"ERR wrong number of arguments for '{name.lower()}' command") from None

    def transact(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """MULTI and EXEC: nobody comes between, and one that fails does not undo the others."""
        for words in commands:
            if str(words[0]).upper() not in COMMANDS:
                raise Refusal(f"ERR unknown command '{words[0]!s}'")
        return [self.answer(words) for words in commands]

    def answer(self, words: Sequence[Word]) -> Any:
        """As `execute`, with a refusal as an answer like any other."""
        try:
            return self.execute(words)
        except Refusal as refusal:
            return refusal

    def find(self, key: bytes, kind: type[T]) -> T | None:
        """A living value of that kind."""
        if self.expiry and self.expiry.get(key, LONGEST_TTL_MS) <= self.now_ms:
            self.drop(key)
        value = self.keys.get(key)
        if value is not None and not isinstance(value, kind):
            raise Refusal(WRONG_TYPE)
        return value

    def drop(self, key: bytes) -> bool:
        """Forget a key; whoever waits for it is told."""
        self.expiry.pop(key, None)
        is_there = self.keys.pop(key, None) is not None
        if is_there:
            self.wake(key)
        return is_there

    def wake(self, key: bytes) -> None:
        """Whoever waits for this stream tries again, in the order in which they came."""
        for waiting in [each for each in self.waiting if each.key == key]:
            if waiting.is_over():
                self.waiting.remove(waiting)
                continue
            answer = self.answer(waiting.words)
            if not isinstance(answer, BlockedRead):
                self.waiting.remove(waiting)
                waiting.give(answer)

    def flush(self) -> None:
        """Everything is forgotten."""
        keys = list(self.keys)
        self.keys.clear()
        self.expiry.clear()
        for key in keys:
            self.wake(key)

    def snapshot(self) -> tuple[dict[bytes, Any], dict[bytes, int]]:
        """All that it knows at this moment."""
        return copy.deepcopy((self.keys, self.expiry))

    def restore(self, snapshot: tuple[dict[bytes, Any], dict[bytes, int]]) -> None:
        """As a replica that heard less becomes the server: what came since is gone, what went is back."""
        self.keys, self.expiry = copy.deepcopy(snapshot)
        for key in {waiting.key: None for waiting in self.waiting}:
            self.wake(key)

    def stream(self, key: bytes) -> Stream | None:
        return self.find(key, Stream)


def as_bytes(word: Word) -> bytes:
    """As a word travels."""
    return word if isinstance(word, bytes) else str(word).encode()


def number(word: bytes) -> int:
    try:
        return int(word)
    except ValueError:
        raise Refusal("ERR value is not an integer or out of range") from None


def _set(server: Server, args: Args) -> bytes | None:
    key, value, options = args[0], args[1], args[2:]
    until, only = None, b""
    while options:
        option = options.pop(0).upper()
        if option in (b"NX", b"XX"):
            only = option
        elif option in (b"EX", b"PX"):
            until = server.now_ms + number(options.pop(0)) * (1000 if option == b"EX" else 1)
        else:
            raise Refusal(SYNTAX)
    is_there = _alive(server, key)
    if (only == b"NX" and is_there) or (only == b"XX" and not is_there):
        return None
    server.keys[key] = value
    server.expiry.pop(key, None)
    if until is not None:
        server.expiry[key] = until
    return b"OK"


def _alive(server: Server, key: bytes) -> bool:
    if server.expiry.get(key, LONGEST_TTL_MS) <= server.now_ms:
        server.drop(key)
    return key in server.keys


def _get(server: Server, args: Args) -> bytes | None:
    return server.find(args[0], bytes)


def _getrange(server: Server, args: Args) -> bytes:
    return (server.find(args[0], bytes) or b"")[int(args[1]) : int(args[2]) + 1]


def _mget(server: Server, args: Args) -> list[bytes | None]:
    values = [server.keys.get(key) if _alive(server, key) else None for key in args]
    return [value if isinstance(value, bytes) else None for value in values]


def _del(server: Server, args: Args) -> int:
    return sum(server.drop(key) for key in args if _alive(server, key))


def _exists(server: Server, args: Args) -> int:
    return sum(_alive(server, key) for key in args)


def _pexpire(server: Server, args: Args) -> int:
    if not _alive(server, args[0]):
        return 0
    server.expiry[args[0]] = server.now_ms + number(args[1])
    return 1


def _hash(server: Server, key: bytes) -> Hash:
    found = server.find(key, dict)
    if found is None:
        found = server.keys[key] = {}
    return found


def _members_changed(server: Server, key: bytes, count: int) -> int:
    """What is empty is not there."""
    if not server.keys.get(key, True):
        server.drop(key)
    return count


def _hset(server: Server, args: Args) -> int:
    names, values = args[1::2], args[2::2]
    if not names or len(names) != len(values):
        raise Refusal("ERR wrong number of arguments for 'hset' command")
    fields = _hash(server, args[0])
    before = len(fields)
    fields.update(zip(names, values, strict=True))
    return len(fields) - before


def _hmget(server: Server, args: Args) -> list[bytes | None]:
    fields: Hash = server.find(args[0], dict) or {}
    return [fields.get(name) for name in args[1:]]


def _hgetall(server: Server, args: Args) -> list[bytes]:
    fields: Hash = server.find(args[0], dict) or {}
    return [part for pair in fields.items() for part in pair]


def _hdel(server: Server, args: Args) -> int:
    fields: Hash = server.find(args[0], dict) or {}
    return _members_changed(server, args[0], sum(fields.pop(name, None) is not None for name in args[1:]))


def _sadd(server: Server, args: Args) -> int:
    """A set is a hash whose values say nothing: its order must not hang on chance."""
    fields = _hash(server, args[0])
    before = len(fields)
    fields.update(dict.fromkeys(args[1:], b""))
    return len(fields) - before


def _srandmember(server: Server, args: Args) -> list[bytes]:
    """The first of them, so that nothing hangs on chance."""
    fields: Hash = server.find(args[0], dict) or {}
    return list(fields)[: int(args[1])]


def _xadd(server: Server, args: Args) -> bytes:
    key, options = args[0], args[1:]
    limit = groups.limit_of(options)
    place, fields = options[0], options[1:]
    if not fields or len(fields) % 2:
        raise Refusal("ERR wrong number of arguments for 'xadd' command")
    stream = server.stream(key)
    if stream is None:
        stream = server.keys[key] = Stream()
    if place == b"*":
        found = stream.add(server.now_ms, fields)
    else:
        found = parsed(place)
        if found <= stream.last:
            raise Refusal("ERR The ID specified in XADD is equal or smaller than the target stream top item")
        stream.entries[found], stream.last = fields, found
    if limit is not None:
        groups.cut(stream, limit)
    if not server.accepts(key, fields):
        stream.remove([found])
    server.wake(key)
    return written(found)


def _xlen(server: Server, args: Args) -> int:
    stream = server.stream(args[0])
    return 0 if stream is None else len(stream.entries)


def _xrange(server: Server, args: Args) -> list[Any]:
    stream = server.stream(args[0])
    first, last = parsed(args[1]), parsed(args[2], number=2**64 - 1)
    limit = number(args[4]) if len(args) > 4 else None
    return [] if stream is None else [shown(*each) for each in stream.between(first, last)][:limit]


def _xdel(server: Server, args: Args) -> int:
    stream = server.stream(args[0])
    ids = [parsed(each) for each in args[1:]]
    return 0 if stream is None else stream.remove(ids)


def _xtrim(server: Server, args: Args) -> int:
    stream = server.stream(args[0])
    limit = groups.limit_of(rest := args[1:])
    if limit is None or rest:
        raise Refusal(SYNTAX)
    return 0 if stream is None else groups.cut(stream, limit)


def _config(server: Server, args: Args) -> list[bytes]:
    is_asked = args[0].upper() == b"GET" and args[1] == b"maxmemory-policy"
    return [b"maxmemory-policy", b"noeviction"] if is_asked else []


def _flush(server: Server, args: Args) -> bytes:
    server.flush()
    return b"OK"


COMMANDS: Final[dict[str, Callable[[Server, Args], Any]]] = {
    "PING": lambda server, args: b"PONG",
    "SET": _set,
    "GET": _get,
    "MGET": _mget,
    "GETRANGE": _getrange,
    "DEL": _del,
    "EXISTS": _exists,
    "PEXPIRE": _pexpire,
    "HSET": _hset,
    "HMGET": _hmget,
    "HGETALL": _hgetall,
    "HDEL": _hdel,
    "HLEN": lambda server, args: len(server.find(args[0], dict) or ()),
    "SADD": _sadd,
    "SRANDMEMBER": _srandmember,
    "SREM": _hdel,
    "XADD": _xadd,
    "XLEN": _xlen,
    "XRANGE": _xrange,
    "XDEL": _xdel,
    "XTRIM": _xtrim,
    "EVAL": run_script,
    "CONFIG": _config,
    "FLUSHALL": _flush,
    **groups.COMMANDS,
}
