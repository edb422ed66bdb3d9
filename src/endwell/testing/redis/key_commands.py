"""The commands of the simulated server about strings, hashes and sets."""

from __future__ import annotations

from typing import Any, Final

from endwell.redis_client import Refusal
from endwell.testing.redis.keyspace import SYNTAX, Args, Command, KeySpace, parse_number

Hash = dict[bytes, bytes]


def _set(server: KeySpace, args: Args) -> bytes | None:
    key, value, options = args[0], args[1], args[2:]
    until, is_new_only = None, False
    while options:
        option = options.pop(0).upper()
        if option == b"NX":
            is_new_only = True
        elif option in (b"EX", b"PX"):
            until = server.now_ms + parse_number(options.pop(0)) * (1000 if option == b"EX" else 1)
        else:
            raise Refusal(SYNTAX)
    if is_new_only and server.has_key(key):
        return None
    server.keys[key] = value
    server.expiry.pop(key, None)
    if until is not None:
        server.expiry[key] = until
    return b"OK"


def _get_range(server: KeySpace, args: Args) -> bytes:
    return (server.find(args[0], bytes) or b"")[int(args[1]) : int(args[2]) + 1]


def _get_many(server: KeySpace, args: Args) -> list[bytes | None]:
    values = [server.keys.get(key) if server.has_key(key) else None for key in args]
    return [value if isinstance(value, bytes) else None for value in values]


def _delete(server: KeySpace, args: Args) -> int:
    return sum(server.drop(key) for key in args if server.has_key(key))


def _set_expiry(server: KeySpace, args: Args) -> int:
    if not server.has_key(args[0]):
        return 0
    server.expiry[args[0]] = server.now_ms + parse_number(args[1])
    return 1


def _hash_of(server: KeySpace, key: bytes) -> Hash:
    return server.find(key, dict) or {}


def _add_members(server: KeySpace, key: bytes, members: Hash) -> int:
    fields: Hash | None = server.find(key, dict)
    if fields is None:
        fields = server.keys[key] = {}
    before = len(fields)
    fields.update(members)
    return len(fields) - before


def _set_fields(server: KeySpace, args: Args) -> int:
    names, values = args[1::2], args[2::2]
    if not names or len(names) != len(values):
        raise Refusal("ERR wrong number of arguments for 'hset' command")
    return _add_members(server, args[0], dict(zip(names, values, strict=True)))


def _get_fields(server: KeySpace, args: Args) -> list[bytes | None]:
    fields = _hash_of(server, args[0])
    return [fields.get(name) for name in args[1:]]


def _get_all_fields(server: KeySpace, args: Args) -> list[bytes]:
    return [part for field in _hash_of(server, args[0]).items() for part in field]


def _delete_members(server: KeySpace, args: Args) -> int:
    fields = _hash_of(server, args[0])
    count = sum(fields.pop(name, None) is not None for name in args[1:])
    if not server.keys.get(args[0], True):
        server.drop(args[0])  # an empty hash does not exist
    return count


def _add_to_set(server: KeySpace, args: Args) -> int:
    """A set is a hash without values, so that its order does not depend on chance."""
    return _add_members(server, args[0], dict.fromkeys(args[1:], b""))


def _random_members(server: KeySpace, args: Args) -> list[bytes]:
    """The first members, so that nothing depends on chance."""
    return list(_hash_of(server, args[0]))[: int(args[1])]


def _get_config(server: KeySpace, args: Args) -> list[bytes]:
    is_policy = args[0].upper() == b"GET" and args[1] == b"maxmemory-policy"
    return [b"maxmemory-policy", b"noeviction"] if is_policy else []


def _flush(server: KeySpace, args: Args) -> Any:
    server.remove_all()
    return b"OK"


KEY_COMMANDS: Final[dict[str, Command]] = {
    "PING": lambda server, args: b"PONG",
    "SET": _set,
    "GET": lambda server, args: server.find(args[0], bytes),
    "MGET": _get_many,
    "GETRANGE": _get_range,
    "DEL": _delete,
    "EXISTS": lambda server, args: sum(server.has_key(key) for key in args),
    "PEXPIRE": _set_expiry,
    "HSET": _set_fields,
    "HMGET": _get_fields,
    "HGETALL": _get_all_fields,
    "HDEL": _delete_members,
    "HLEN": lambda server, args: len(_hash_of(server, args[0])),
    "SADD": _add_to_set,
    "SRANDMEMBER": _random_members,
    "SREM": _delete_members,
    "CONFIG": _get_config,
    "FLUSHALL": _flush,
}
