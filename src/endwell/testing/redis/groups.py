"""What the server answers about groups: reading, acknowledging, claiming, and who has what."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from endwell.redis_client import Refusal
from endwell.testing.redis.stream import FIRST, Given, Id, Stream, StreamGroup, parsed, shown, written
from endwell.testing.redis.waiting import BlockedRead

if TYPE_CHECKING:
    from endwell.testing.redis.server import Server

Args = list[bytes]
SYNTAX: Final = "ERR syntax error"
Limit = tuple[bytes, bytes]
"""MAXLEN or MINID, and the threshold."""


def limit_of(words: Args) -> Limit | None:
    """Takes `MAXLEN|MINID [~|=] threshold` from the front of these words."""
    if not words or words[0].upper() not in (b"MAXLEN", b"MINID"):
        return None
    kind = words.pop(0).upper()
    if words[0] in (b"~", b"="):
        words.pop(0)
    return kind, words.pop(0)


def cut(stream: Stream, limit: Limit) -> int:
    """How many entries went. What `~` would leave for later goes at once here."""
    kind, threshold = limit
    if kind == b"MINID":
        least = parsed(threshold)
        return stream.remove([each for each in stream.entries if each < least])
    surplus = max(len(stream.entries) - int(threshold), 0)
    return stream.remove(list(stream.entries)[:surplus])


def _group(server: Server, key: bytes, name: bytes, command: str) -> tuple[Stream, StreamGroup]:
    stream = server.stream(key)
    group = None if stream is None else stream.groups.get(name)
    if stream is None or group is None:
        where = " with GROUP option" if command == "XREADGROUP" else ""
        shown_key, shown_name = key.decode(errors="replace"), name.decode(errors="replace")
        raise Refusal(
            f"NOGROUP No such key '{shown_key}' or consumer group '{shown_name}' in {command}{where}"
        )
    return stream, group


def _xgroup(server: Server, args: Args) -> Any:
    action, key, name = args[0].upper(), args[1], args[2]
    if action == b"CREATE":
        return _create(server, key, name, args[3:])
    stream = server.stream(key)
    if stream is None:
        raise Refusal("ERR The XGROUP subcommand requires the key to exist.")
    if action == b"DESTROY":
        is_there = stream.groups.pop(name, None) is not None
        server.wake(key)
        return int(is_there)
    if action != b"DELCONSUMER":
        raise Refusal(f"ERR unknown subcommand '{action.decode()}'")
    _, group = _group(server, key, name, "XGROUP")
    held = [each for each, given in group.pending.items() if given.consumer == args[3]]
    for each in held:
        del group.pending[each]
    group.consumers.pop(args[3], None)
    return len(held)


def _create(server: Server, key: bytes, name: bytes, rest: Args) -> bytes:
    stream = server.stream(key)
    if stream is None:
        if b"MKSTREAM" not in [word.upper() for word in rest[1:]]:
            raise Refusal("ERR The XGROUP subcommand requires the key to exist.")
        stream = server.keys[key] = Stream()
    if name in stream.groups:
        raise Refusal("BUSYGROUP Consumer Group name already exists")
    stream.groups[name] = StreamGroup(stream.last if rest[0] == b"$" else parsed(rest[0]))
    return b"OK"


def _xreadgroup(server: Server, args: Args) -> Any:
    words = list(args)
    name, consumer = words[1], words[2]
    del words[:3]
    limit, block = 2**31, None
    while words[0].upper() != b"STREAMS":
        option = words.pop(0).upper()
        if option == b"COUNT":
            limit = int(words.pop(0))
        elif option == b"BLOCK":
            block = int(words.pop(0))
        elif option != b"NOACK":
            raise Refusal(SYNTAX)
    key, after = words[1], words[2]
    stream, group = _group(server, key, name, "XREADGROUP")
    now = group.consumers[consumer] = server.now_ms
    if after != b">":
        return [[key, _own(stream, group, consumer, parsed(after), limit)]]
    found = stream.after(group.last, limit)
    if not found:
        return None if block is None else BlockedRead(key, (b"XREADGROUP", *args), block)
    for each, _ in found:
        group.pending[each] = Given(consumer, now, 1)
        group.last = each
    return [[key, [shown(*each) for each in found]]]


def _own(stream: Stream, group: StreamGroup, consumer: bytes, after: Id, limit: int) -> list[Any]:
    """What a consumer has already; deleted entries come with nothing."""
    mine = [each for each, given in group.listed() if given.consumer == consumer and each > after][:limit]
    return [[written(each), list(stream.entries[each]) if each in stream.entries else None] for each in mine]


def _xack(server: Server, args: Args) -> int:
    stream = server.stream(args[0])
    group = None if stream is None else stream.groups.get(args[1])
    ids = [parsed(each) for each in args[2:]]
    return 0 if group is None else sum(group.pending.pop(each, None) is not None for each in ids)


def _xpending(server: Server, args: Args) -> list[Any]:
    _, group = _group(server, args[0], args[1], "XPENDING")
    words = args[2:]
    if not words:
        return _summary(group)
    least = 0
    if words[0].upper() == b"IDLE":
        least = int(words[1])
        words = words[2:]
    if len(words) < 3:
        raise Refusal(SYNTAX)
    first, last, limit = parsed(words[0]), parsed(words[1], number=2**64 - 1), int(words[2])
    now = server.now_ms
    return [
        [written(each), given.consumer, max(now - given.at_ms, 0), given.times]
        for each, given in group.listed()
        if first <= each <= last
        and now - given.at_ms >= least
        and (len(words) < 4 or given.consumer == words[3])
    ][:limit]


def _summary(group: StreamGroup) -> list[Any]:
    listed = group.listed()
    if not listed:
        return [0, None, None, None]
    names = sorted({given.consumer: None for _, given in listed})
    held = [[name, b"%d" % group.held_by(name)] for name in names]
    return [len(listed), written(listed[0][0]), written(listed[-1][0]), held]


def _xclaim(server: Server, args: Args) -> list[Any]:
    stream, group = _group(server, args[0], args[1], "XCLAIM")
    consumer, least = args[2], int(args[3])
    words = args[4:]
    ids = []
    while words and words[0][:1].isdigit():
        ids.append(parsed(words.pop(0)))
    idle, is_bare = 0, False
    while words:
        option = words.pop(0).upper()
        if option == b"JUSTID":
            is_bare = True
        elif option == b"IDLE":
            idle = int(words.pop(0))
        else:
            raise Refusal(SYNTAX)
    now = server.now_ms
    group.consumers[consumer] = now
    taken = []
    for each in ids:
        given = group.pending.get(each)
        if given is None or now - given.at_ms < least:
            continue
        if each not in stream.entries:
            del group.pending[each]  # since Redis 7 a claim drops what was deleted
            continue
        given.consumer, given.at_ms = consumer, now - idle
        given.times += 0 if is_bare else 1
        taken.append(each)
    return [written(each) if is_bare else shown(each, stream.entries[each]) for each in taken]


def _xautoclaim(server: Server, args: Args) -> list[Any]:
    stream, group = _group(server, args[0], args[1], "XAUTOCLAIM")
    consumer, least, start = args[2], int(args[3]), parsed(args[4])
    limit = int(args[6]) if len(args) > 6 else 100
    now = server.now_ms
    group.consumers[consumer] = now
    taken: list[Any] = []
    deleted: list[bytes] = []
    cursor = FIRST
    looked = limit * 10
    for each, given in group.listed():
        if each < start:
            continue
        if len(taken) + len(deleted) >= limit or not looked:
            cursor = each
            break
        looked -= 1
        if now - given.at_ms < least:
            continue
        if each not in stream.entries:
            del group.pending[each]
            deleted.append(written(each))
            continue
        given.consumer, given.at_ms = consumer, now
        given.times += 1
        taken.append(shown(each, stream.entries[each]))
    return [written(cursor), taken, deleted]


def _xinfo(server: Server, args: Args) -> list[Any]:
    kind, key = args[0].upper(), args[1]
    stream = server.stream(key)
    if stream is None:
        raise Refusal("ERR no such key")
    if kind == b"GROUPS":
        return [_group_row(name, group) for name, group in sorted(stream.groups.items())]
    if kind != b"CONSUMERS":
        raise Refusal(f"ERR unknown subcommand '{kind.decode()}'")
    _, group = _group(server, key, args[2], "XINFO")
    now = server.now_ms
    return [
        [b"name", name, b"pending", group.held_by(name), b"idle", max(now - seen, 0)]
        for name, seen in sorted(group.consumers.items())
    ]


def _group_row(name: bytes, group: StreamGroup) -> list[Any]:
    row: list[Any] = [b"name", name, b"consumers", len(group.consumers), b"pending", len(group.pending)]
    return [*row, b"last-delivered-id", written(group.last)]


COMMANDS: Final[dict[str, Callable[[Server, Args], Any]]] = {
    "XGROUP": _xgroup,
    "XREADGROUP": _xreadgroup,
    "XACK": _xack,
    "XPENDING": _xpending,
    "XCLAIM": _xclaim,
    "XAUTOCLAIM": _xautoclaim,
    "XINFO": _xinfo,
}
