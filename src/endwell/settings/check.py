"""Combinations of settings that could not work, refused before anything starts."""

from __future__ import annotations

from msgspec.structs import replace

from endwell.errors import BadSetting
from endwell.settings.sections import Settings
from endwell.settings.show import each_url

SHORTEST_LEASE_SECONDS = 0.1
_QUEUE_KEYS = {"lease": "VISIBILITY_TIMEOUT_S", "heartbeat": "HEARTBEAT_INTERVAL_S"}
SCHEMES = {"redis": ("redis", "rediss", "unix"), "nats": ("nats", "tls", "ws", "wss")}


def as_queued(settings: Settings) -> Settings:
    """With `queue.kind = "redis"`, take lease, heartbeat and retries from the protocol's own settings."""
    if settings.queue.kind != "redis":
        return settings
    queue = settings.queue
    worker = replace(
        settings.worker,
        lease_seconds=queue.VISIBILITY_TIMEOUT_S,
        heartbeat_seconds=queue.HEARTBEAT_INTERVAL_S,
    )
    names = {f"worker.{kind}_seconds": key for kind, key in _QUEUE_KEYS.items()}
    sources = settings.sources | {key: f"queue.{name}" for key, name in names.items()}
    sources["retry.max_retries"] = "queue.MAX_RETRIES"
    retry = replace(settings.retry, max_retries=queue.MAX_RETRIES)
    return replace(settings, worker=worker, retry=retry, sources=sources)


def check(settings: Settings) -> None:
    """Raise BadSetting, with the values and the reason, if the settings contradict each other."""
    _check_lease(settings)
    _check_runaway_limit(settings)
    _check_dispatch(settings)
    _check_doorbell(settings)
    _check_queue(settings)
    for server, schemes in SCHEMES.items():
        _check_url(settings, f"{server}.url", schemes)


def _check_lease(settings: Settings) -> None:
    lease, heartbeat = settings.worker.lease_seconds, settings.worker.heartbeat_seconds
    if lease < SHORTEST_LEASE_SECONDS:
        given = shown_value(settings, "worker.lease_seconds")
        raise BadSetting(
            f"{given} must be at least {SHORTEST_LEASE_SECONDS}: a shorter lease lapses between heartbeats.",
            field="worker.lease_seconds",
        )
    if heartbeat >= lease / 2:
        raise BadSetting(
            f"{shown_value(settings, 'worker.heartbeat_seconds')} must be shorter than half of "
            f"{shown_value(settings, 'worker.lease_seconds')}, that is {lease / 2:g}: "
            "one late heartbeat must not cost the lease.",
            field="worker.heartbeat_seconds",
        )


def _check_runaway_limit(settings: Settings) -> None:
    retries, crashes = settings.retry.max_retries, settings.pmo.crash_limit
    legal = retries + 1 + crashes
    if legal >= settings.pmo.runaway_limit:
        raise BadSetting(
            f"A task may legally run {retries} + 1 + {crashes} = {legal} times "
            f"({shown_value(settings, 'retry.max_retries')}, the first run, "
            f"{shown_value(settings, 'pmo.crash_limit')}), "
            f"but {shown_value(settings, 'pmo.runaway_limit')} would end it as a runaway first; "
            f"the limit must be above {legal}.",
            field="pmo.runaway_limit",
        )


def _check_dispatch(settings: Settings) -> None:
    ring, timeout = settings.pmo.dispatched_retry_seconds, settings.pmo.dispatched_timeout_seconds
    if ring > 0 and timeout > 0 and ring >= timeout:
        raise BadSetting(
            f"{shown_value(settings, 'pmo.dispatched_retry_seconds')} must be shorter than "
            f"{shown_value(settings, 'pmo.dispatched_timeout_seconds')}: "
            "a dispatch would time out before its worker is rung a second time.",
            field="pmo.dispatched_retry_seconds",
        )


def _check_doorbell(settings: Settings) -> None:
    kind = settings.doorbell.kind
    if kind in SCHEMES and not settings.value(f"{kind}.url"):
        raise BadSetting(
            f'doorbell.kind = "{kind}" ({settings.source("doorbell.kind")}) needs a server, '
            f"and {kind}.url is not set.",
            hint=f"set {kind}.url, for example {SCHEMES[kind][0]}://127.0.0.1, or remove doorbell.kind",
            field=f"{kind}.url",
        )


def _check_queue(settings: Settings) -> None:
    if settings.queue.kind == "redis" and not settings.redis.url:
        raise BadSetting(
            f'queue.kind = "redis" ({settings.source("queue.kind")}) needs a server, '
            "and redis.url is not set.",
            hint="set redis.url, for example redis://127.0.0.1, or remove queue.kind",
            field="redis.url",
        )


def _check_url(settings: Settings, key: str, schemes: tuple[str, ...]) -> None:
    for url in each_url(settings.value(key)):
        if url and not url.lower().startswith(tuple(f"{scheme}://" for scheme in schemes)):
            raise BadSetting(
                f"{key} ({settings.source(key)}) must begin with "
                f"{' or '.join(f'{scheme}://' for scheme in schemes)}.",
                field=key,
            )


def shown_value(settings: Settings, key: str) -> str:
    return f"{key} = {settings.value(key):g} ({settings.source(key)})"
