"""Every setting with its default, section by section as in endwell.toml."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple, get_type_hints

import msgspec

from endwell.settings.values import (
    Count,
    CountOrNone,
    Delays,
    DoorbellKind,
    LoopAction,
    Multiplier,
    People,
    Person,
    QueueKind,
    Ratio,
    RelayEvents,
    RelayKind,
    RelayStart,
    Seconds,
    SecondsOrOff,
    Text,
    Texts,
)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One table of endwell.toml."""


class PmoSettings(Section, frozen=True, kw_only=True):
    watchdog_interval_seconds: Seconds = 5.0
    dispatched_retry_seconds: SecondsOrOff = 10.0
    dispatched_timeout_seconds: SecondsOrOff = 30.0
    pending_wakeup_seconds: SecondsOrOff = 5.0
    pending_wakeup_skip_seconds: SecondsOrOff = 300.0
    active_reap_seconds: Seconds = 300.0
    runaway_limit: Count = 10
    crash_limit: Count = 3
    crash_window_seconds: Seconds = 1800.0


class WorkerSettings(Section, frozen=True, kw_only=True):
    watchdog_interval_seconds: Seconds = 5.0
    inbox_processing_timeout_seconds: SecondsOrOff = 300.0
    suspend_timeout_seconds: Seconds = 30.0
    lease_seconds: Seconds = 30.0
    heartbeat_seconds: Seconds = 10.0
    poll_seconds: Seconds = 1.0
    quiet_poll_seconds: Seconds = 2.1
    drain_seconds: Seconds = 30.0
    concurrency: Count = 128
    step_timeout_seconds: Seconds = 240.0
    effect_timeout_seconds: Seconds = 30.0
    effect_margin_seconds: Seconds = 5.0

    def pace_seconds(self, *, is_free: bool, is_rung: bool) -> float:
        """Seconds between two looks for work; more where each look costs and the doorbell works."""
        if is_rung and not is_free:
            return max(self.poll_seconds, self.quiet_poll_seconds)
        return self.poll_seconds


class RetrySettings(Section, frozen=True, kw_only=True):
    max_retries: CountOrNone = 3
    base_seconds: Seconds = 0.5
    multiplier: Multiplier = 2.0
    jitter: Ratio = 0.2
    delays: Delays = ()


class TaskSettings(Section, frozen=True, kw_only=True):
    deadline_seconds: Seconds = 86400.0


class ProgressSettings(Section, frozen=True, kw_only=True):
    """When an agent that repeats itself is nudged; at twice these limits it is stopped."""

    repeat_limit: CountOrNone = 10  # 0 is off
    stall_seconds: SecondsOrOff = 1800.0
    action: LoopAction = "stop"


class ApprovalSettings(Section, frozen=True, kw_only=True):
    """What a person must agree to before it starts, unless the agent or tool says otherwise."""

    risks: Texts = ("money_movement",)
    within_seconds: Seconds = 14400.0
    by: People = ()  # empty: anybody


class HumanSettings(Section, frozen=True, kw_only=True):
    owner: Person = ""  # empty: the submitting OS user
    remind_seconds: Seconds = 86400.0


class QueueSettings(Section, frozen=True, kw_only=True):
    """Names in capitals are those of the queue protocol."""

    kind: QueueKind = "native"
    VISIBILITY_TIMEOUT_S: Seconds = 300.0
    HEARTBEAT_INTERVAL_S: Seconds = 30.0
    MAX_RETRIES: CountOrNone = 3
    RECLAIM_INTERVAL_S: Seconds = 30.0
    foreign_agents: Texts = ("*",)
    results_kept: CountOrNone = 10_000

    @property
    def reclaim_grace_seconds(self) -> float:
        """How long reclaims are left to the stream's own reclaimer, which knows the entries."""
        return 2 * self.RECLAIM_INTERVAL_S if self.kind == "redis" else 0.0


class DoorbellSettings(Section, frozen=True, kw_only=True):
    """`auto` is NATS if `nats.url` is set, else Redis if `redis.url` is set, else the store's own."""

    kind: DoorbellKind = "auto"


class RedisSettings(Section, frozen=True, kw_only=True):
    url: Text = ""
    prefix: Text = ""
    block_seconds: Seconds = 2.0


class NatsSettings(Section, frozen=True, kw_only=True):
    url: Text = ""


class RelaySettings(Section, frozen=True, kw_only=True):
    """Where the relay sends messages, and how patiently."""

    kind: RelayKind = ""  # empty: no relay
    url: Text = ""
    secret: Text = ""
    events: RelayEvents = ("state", "task", "step")
    start: RelayStart = "beginning"
    batch: Count = 100
    webhook_batch: Count = 1
    timeout_seconds: Seconds = 10.0
    lease_seconds: Seconds = 30.0
    tries: Count = 5
    retry_seconds: Seconds = 0.5
    pause_seconds: Seconds = 30.0
    poll_seconds: Seconds = 5.0
    lag_seconds: Seconds = 60.0


class AppSettings(Section, frozen=True, kw_only=True):
    target: Text = "app:app"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings; `sources` names the file or variable of every value that is not a default."""

    store: Text = "sqlite:///endwell.db"
    pmo: PmoSettings = PmoSettings()
    worker: WorkerSettings = WorkerSettings()
    retry: RetrySettings = RetrySettings()
    task: TaskSettings = TaskSettings()
    progress: ProgressSettings = ProgressSettings()
    approval: ApprovalSettings = ApprovalSettings()
    human: HumanSettings = HumanSettings()
    queue: QueueSettings = QueueSettings()
    doorbell: DoorbellSettings = DoorbellSettings()
    redis: RedisSettings = RedisSettings()
    nats: NatsSettings = NatsSettings()
    relay: RelaySettings = RelaySettings()
    app: AppSettings = AppSettings()
    sources: dict[str, str] = {}

    def value(self, key: str) -> Any:
        """The value of `section.key`, or of `store`."""
        return reduce(getattr, key.split("."), self)

    def source(self, key: str) -> str:
        """The source of a value: a file, a variable, or `default`."""
        return self.sources.get(key, "default")


class Key(NamedTuple):
    """How the raw value of one setting is read."""

    type: Any
    read: Callable[[object], Any]


def _all_keys() -> dict[str, Key]:
    keys = {"store": _key_of(get_type_hints(Settings, include_extras=True)["store"])}
    for section, kind in get_type_hints(Settings).items():
        if isinstance(kind, type) and issubclass(kind, Section):
            for name, hint in get_type_hints(kind, include_extras=True).items():
                keys[f"{section}.{name}"] = _key_of(hint)
    return keys


def _key_of(hint: Any) -> Key:
    return Key(hint.__origin__, hint.__metadata__[0])


KEYS = _all_keys()
"""Every setting by its full name."""
