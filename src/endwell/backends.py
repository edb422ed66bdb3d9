"""The concrete backends that settings name; the only file that knows them all.

Imports stand inside functions where a backend needs an optional package.
"""

from __future__ import annotations

from collections.abc import Callable

from endwell.doorbell.contract import Doorbell
from endwell.doorbell.local import LocalDoorbell
from endwell.errors import BadSetting
from endwell.pmo.relay.sink import Sink
from endwell.pmo.relay.webhook import Webhook
from endwell.policy.limits import Limits
from endwell.runtime.base import Runtime
from endwell.settings import Settings
from endwell.settings.store_url import sqlite_path
from endwell.store.contract import Store
from endwell.store.sqlite.store import SqliteStore

Ring = Callable[[set[str]], None]
"""Called with the topics of each commit."""


def make_store(url: str, limits: Limits, runtime: Runtime, ring: Ring | None) -> Store:
    """The store of this URL, not yet opened."""
    if url.startswith("sqlite:"):
        return SqliteStore(sqlite_path(url), limits=limits, runtime=runtime, ring=ring)
    from endwell.store.postgres.store import PostgresStore

    return PostgresStore(url, limits=limits, runtime=runtime, ring=ring)


def make_doorbell(url: str, settings: Settings, runtime: Runtime) -> Doorbell:
    """The doorbell that the settings name, or the one of the store at this URL; not yet opened."""
    kind, patience = _doorbell_kind(settings), settings.worker.poll_seconds
    if kind == "nats":
        from endwell.doorbell.nats import NatsDoorbell

        return NatsDoorbell(settings.nats.url, runtime=runtime, patience_seconds=patience)
    if kind == "redis":
        from endwell.doorbell.redis import RedisDoorbell

        redis = settings.redis
        return RedisDoorbell(redis.url, runtime=runtime, prefix=redis.prefix, patience_seconds=patience)
    if url.startswith("sqlite:"):
        return LocalDoorbell(str(sqlite_path(url)), runtime=runtime)
    from endwell.doorbell.postgres import PostgresDoorbell

    return PostgresDoorbell(url, runtime=runtime)


def _doorbell_kind(settings: Settings) -> str:
    """`nats`, `redis`, or `store` for the doorbell that belongs to the store."""
    if settings.doorbell.kind != "auto":
        return settings.doorbell.kind
    return "nats" if settings.nats.url else "redis" if settings.redis.url else "store"


def make_sink(settings: Settings, runtime: Runtime) -> Sink:
    """The receiver of the relay's messages."""
    relay = settings.relay
    if relay.kind in ("nats", "jetstream"):
        from endwell.pmo.relay.nats import NatsSink

        url = relay.url or settings.nats.url
        return NatsSink(url, is_stream=relay.kind == "jetstream", timeout_seconds=relay.timeout_seconds)
    if relay.kind in ("redis", "redis_stream"):
        from endwell.pmo.relay.redis import RedisSink

        url, prefix = relay.url or settings.redis.url, settings.redis.prefix
        return RedisSink(url, prefix=prefix, is_stream=relay.kind == "redis_stream")
    if not relay.secret and settings.source("relay.secret") != "default":
        raise BadSetting(
            f"relay.secret is empty, as set by {settings.source('relay.secret')}: no request would be signed",
            hint="give it a value, or remove it",
            field="relay.secret",
        )
    return Webhook(
        relay.url,
        runtime=runtime,
        secret=relay.secret,
        batch=relay.webhook_batch,
        timeout_seconds=relay.timeout_seconds,
    )
