"""The commands of the simulated server about groups: reading, acknowledging, claiming, looking."""

from __future__ import annotations

from typing import Any, Final

from endwell.redis_client import Refusal
from endwell.testing.redis.keyspace import SYNTAX, Args, Command, KeySpace
from endwell.testing.redis.stream import (
    FIRST,
    BlockedRead,
    PendingEntry,
    Stream,
    StreamGroup,
    parse_id,
    write_entry,
    write_id,
)

NO_STREAM: Final = "ERR The XGROUP subcommand requires the key to exist."


def _find_group(server: KeySpace, key: bytes, name: bytes, command: str) -> tuple[Stream, StreamGroup]:
    stream = server.find_stream(key)
    group = None if stream is None else stream.groups.get(name)
    if stream is None or group is None:
        where = " with GROUP option" if command == "XREADGROUP" else ""
        shown_key, shown_name = key.decode(errors="replace"), name.decode(errors="replace")
        raise Refusal(
            f"NOGROUP No such key '{shown_key}' or consumer group '{shown_name}' in {command}{where}"
        )
    return stream, group


def _manage(server: KeySpace, args: Args) -> Any:
    action, key, name = args[0].upper(), args[1], args[2]
    if action == b"CREATE":
        return _create_group(server, key, name, args[3:])
    stream = server.find_stream(key)
    if stream is None:
        raise Refusal(NO_STREAM)
    if action == b"DESTROY":
        is_there = stream.groups.pop(name, None) is not None
        server.wake(key)
        return int(is_there)
    if action != b"DELCONSUMER":
        raise Refusal(f"ERR unknown subcommand '{action.decode()}'")
    _, group = _find_group(server, key, name, "XGROUP")
    held = [each for each, entry in group.pending.items() if entry.consumer == args[3]]
    for each in held:
        del group.pending[each]
    group.consumers.pop(args[3], None)
    return len(held)


def _create_group(server: KeySpace, key: bytes, name: bytes, rest: Args) -> bytes:
    stream = server.find_stream(key)
    if stream is None:
        if b"MKSTREAM" not in [word.upper() for word in rest[1:]]:
            raise Refusal(NO_STREAM)
        stream = server.keys[key] = Stream()
    if name in stream.groups:
        raise Refusal("BUSYGROUP Consumer Group name already exists")
    stream.groups[name] = StreamGroup(parse_id(rest[0]))
    return b"OK"


def _read(server: KeySpace, args: Args) -> Any:
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
        else:
            raise Refusal(SYNTAX)
    key = words[1]
    stream, group = _find_group(server, key, name, "XREADGROUP")
    now = group.consumers[consumer] = server.now_ms
    found = stream.entries_after(group.last, limit)
    if not found:
        return None if block is None else BlockedRead(key, (b"XREADGROUP", *args), block)
    for each, _ in found:
        group.pending[each] = PendingEntry(consumer, now, 1)
        group.last = each
    return [[key, [write_entry(*each) for each in found]]]


def _acknowledge(server: KeySpace, args: Args) -> int:
    stream = server.find_stream(args[0])
    group = None if stream is None else stream.groups.get(args[1])
    ids = [parse_id(each) for each in args[2:]]
    return 0 if group is None else sum(group.pending.pop(each, None) is not None for each in ids)


def _list_pending(server: KeySpace, args: Args) -> list[Any]:
    _, group = _find_group(server, args[0], args[1], "XPENDING")
    words = args[2:]
    if not words:
        return _summarize_pending(group)
    least = 0
    if words[0].upper() == b"IDLE":
        least = int(words[1])
        words = words[2:]
    if len(words) < 3:
        raise Refusal(SYNTAX)
    first, last, limit = parse_id(words[0]), parse_id(words[1], number=2**64 - 1), int(words[2])
    now = server.now_ms
    return [
        [write_id(each), entry.consumer, max(now - entry.at_ms, 0), entry.times]
        for each, entry in group.sorted_pending()
        if first <= each <= last
        and now - entry.at_ms >= least
        and (len(words) < 4 or entry.consumer == words[3])
    ][:limit]


def _summarize_pending(group: StreamGroup) -> list[Any]:
    pending = group.sorted_pending()
    if not pending:
        return [0, None, None, None]
    names = sorted({entry.consumer for _, entry in pending})
    held = [[name, b"%d" % group.held_by(name)] for name in names]
    return [len(pending), write_id(pending[0][0]), write_id(pending[-1][0]), held]


def _claim(server: KeySpace, args: Args) -> list[Any]:
    stream, group = _find_group(server, args[0], args[1], "XCLAIM")
    consumer, least = args[2], int(args[3])
    words = args[4:]
    ids = []
    while words and words[0][:1].isdigit():
        ids.append(parse_id(words.pop(0)))
    idle, is_bare = 0, False
    while words:
        option = words.pop(0).upper()
        if option == b"JUSTID":
            is_bare = True
        elif option == b"IDLE":
            idle = int(words.pop(0))
        else:
            raise Refusal(SYNTAX)
    now = group.consumers[consumer] = server.now_ms
    taken = []
    for each in ids:
        entry = group.pending.get(each)
        if entry is None or now - entry.at_ms < least:
            continue
        if each not in stream.entries:
            del group.pending[each]  # since Redis 7 a claim drops what was deleted
            continue
        entry.consumer, entry.at_ms = consumer, now - idle
        entry.times += 0 if is_bare else 1
        taken.append(each)
    return [write_id(each) if is_bare else write_entry(each, stream.entries[each]) for each in taken]


def _claim_overdue(server: KeySpace, args: Args) -> list[Any]:
    stream, group = _find_group(server, args[0], args[1], "XAUTOCLAIM")
    consumer, least, start = args[2], int(args[3]), parse_id(args[4])
    limit = int(args[6]) if len(args) > 6 else 100
    now = group.consumers[consumer] = server.now_ms
    taken: list[Any] = []
    deleted: list[bytes] = []
    cursor, looks = FIRST, limit * 10
    for each, entry in group.sorted_pending():
        if each < start:
            continue
        if len(taken) + len(deleted) >= limit or not looks:
            cursor = each
            break
        looks -= 1
        if now - entry.at_ms < least:
            continue
        if each not in stream.entries:
            del group.pending[each]
            deleted.append(write_id(each))
            continue
        entry.consumer, entry.at_ms = consumer, now
        entry.times += 1
        taken.append(write_entry(each, stream.entries[each]))
    return [write_id(cursor), taken, deleted]


def _describe(server: KeySpace, args: Args) -> list[Any]:
    kind, key = args[0].upper(), args[1]
    stream = server.find_stream(key)
    if stream is None:
        raise Refusal("ERR no such key")
    if kind == b"GROUPS":
        return [_group_row(name, group) for name, group in sorted(stream.groups.items())]
    if kind != b"CONSUMERS":
        raise Refusal(f"ERR unknown subcommand '{kind.decode()}'")
    _, group = _find_group(server, key, args[2], "XINFO")
    now = server.now_ms
    return [
        [b"name", name, b"pending", group.held_by(name), b"idle", max(now - active_at, 0)]
        for name, active_at in sorted(group.consumers.items())
    ]


def _group_row(name: bytes, group: StreamGroup) -> list[Any]:
    row: list[Any] = [b"name", name, b"consumers", len(group.consumers), b"pending", len(group.pending)]
    return [*row, b"last-delivered-id", write_id(group.last)]


GROUP_COMMANDS: Final[dict[str, Command]] = {
    "XGROUP": _manage,
    "XREADGROUP": _read,
    "XACK": _acknowledge,
    "XPENDING": _list_pending,
    "XCLAIM": _claim,
    "XAUTOCLAIM": _claim_overdue,
    "XINFO": _describe,
}
