"""The keys by which foreign workers and the orchestrator know of each other: registrations and grants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from endwell.model.content import read_as
from endwell.policy.foreign import MAX_WORKERS
from endwell.redis_client import RedisClient, Refusal
from endwell.streams.entries import is_plain_name, is_whole_number
from endwell.streams.protocol import Names

WORKER_BYTES: Final = 32_768
"""Most that a foreign worker may say of itself: 200 agents with the longest names have room."""
MOST_SLOTS: Final = 1000
GRANT_SECONDS: Final = 86_400
DENIAL_SECONDS: Final = 60
DENIED: Final = "-"
"""In place of an attempt: the turn is denied to every worker."""


class ForeignRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """What a foreign worker says of itself."""

    name: str
    tools: tuple[str, ...]
    slots: int = 1


class RegistrationText(msgspec.Struct):
    """The JSON value of a registration."""

    tools: tuple[str, ...]
    slots: int = 1


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The grant of one turn to a foreign worker."""

    task_id: str
    turn_id: str
    epoch: int

    @property
    def hash_field(self) -> str:
        """Its field in the hash of all grants."""
        return f"{self.turn_id}:{self.epoch}"


class Registrations:
    """The foreign workers that have registered."""

    def __init__(self, redis: RedisClient, names: Names) -> None:
        self._redis = redis
        self._names = names

    async def find(self, name: str) -> ForeignRegistration | None:
        """What one worker says of itself; None if it says nothing usable."""
        return read_registration(name, *(await self._texts_of([name])))

    async def all_live(self) -> list[ForeignRegistration]:
        """The registrations that have not expired; other names are removed from the list of workers.

        Any client can add names: at most as many are looked at as may have a session.
        """
        listed = sorted(await self._redis.ask("SRANDMEMBER", self._names.workers, MAX_WORKERS))
        if not listed:
            return []
        names = [raw.decode(errors="replace") for raw in listed]
        texts = await self._texts_of(names)
        found = [
            read_registration(name, text) if is_plain_name(name) else None
            for name, text in zip(names, texts, strict=True)
        ]
        expired = [raw for raw, worker in zip(listed, found, strict=True) if worker is None]
        if expired:
            await self._redis.ask("SREM", self._names.workers, *expired)
        return [worker for worker in found if worker is not None]

    async def remove(self, name: str) -> None:
        """Forget a worker that has signed off."""
        await self._redis.ask_all(
            [("SREM", self._names.workers, name), ("DEL", self._names.worker_key(name))]
        )

    async def _texts_of(self, names: Sequence[str]) -> list[bytes]:
        """What workers say of themselves; empty where the key is missing or holds no text."""
        looks = [("GETRANGE", self._names.worker_key(name), 0, WORKER_BYTES) for name in names]
        try:
            return await self._redis.ask_all(looks)
        except Refusal:
            if len(names) == 1:
                return [b""]
        return [text for name in names for text in await self._texts_of([name])]


class GrantKeys:
    """The grants of one installation, on the server."""

    def __init__(self, redis: RedisClient, names: Names) -> None:
        self._redis = redis
        self._names = names

    async def give_grant(self, grant: Grant, attempt_id: str) -> None:
        """Let the worker of this attempt begin or continue, and no other."""
        key = self._names.grant_key(grant.turn_id, grant.epoch)
        setting = ("SET", key, attempt_id, "EX", GRANT_SECONDS)
        listing = ("HSET", self._names.grants, grant.hash_field, grant.task_id)
        await self._redis.ask_all([setting, listing], atomic=True)

    async def deny(self, grant: Grant) -> None:
        """Tell a worker that there is nothing to do; an existing grant stands."""
        key = self._names.grant_key(grant.turn_id, grant.epoch)
        await self._redis.ask("SET", key, DENIED, "NX", "EX", DENIAL_SECONDS)

    async def revoke(self, grants: Sequence[Grant]) -> None:
        """Remove grants whose attempts have lost their turns: the workers must stop."""
        if grants:
            keys = [self._names.grant_key(grant.turn_id, grant.epoch) for grant in grants]
            unlisting = ("HDEL", self._names.grants, *(grant.hash_field for grant in grants))
            await self._redis.ask_all([("DEL", *keys), unlisting], atomic=True)

    async def all_listed(self) -> list[Grant]:
        """Every grant that was given and not yet revoked, also by another orchestrator."""
        found = await self._redis.ask("HGETALL", self._names.grants)
        listed = [_read_grant(found[n], found[n + 1]) for n in range(0, len(found), 2)]
        return [grant for grant in listed if grant is not None]

    async def attempts_of(self, grants: Sequence[Grant]) -> list[str]:
        """The attempts that these grants name now; empty where a grant is gone."""
        keys = [self._names.grant_key(grant.turn_id, grant.epoch) for grant in grants]
        return [(each or b"").decode(errors="replace") for each in await self._redis.ask("MGET", *keys)]


def read_registration(name: str, text: bytes) -> ForeignRegistration | None:
    """Read what a foreign worker says of itself, as JSON; None if that is nothing usable."""
    found = None if not text or len(text) > WORKER_BYTES else read_as(text, RegistrationText)
    if found is None:
        return None
    return ForeignRegistration(name=name, tools=found.tools, slots=max(1, min(found.slots, MOST_SLOTS)))


def _read_grant(field: bytes, task_id: bytes) -> Grant | None:
    """Any client may write to the hash: None for what is no grant."""
    turn_id, _, epoch = field.decode(errors="replace").rpartition(":")
    name = task_id.decode(errors="replace")
    if not is_whole_number(epoch) or not is_plain_name(turn_id) or not is_plain_name(name):
        return None
    return Grant(task_id=name, turn_id=turn_id, epoch=int(epoch))
