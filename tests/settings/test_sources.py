"""Settings: their defaults and sources, and which source wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from endwell import settings
from endwell.errors import BadSetting
from endwell.settings import Settings, as_queued, check, describe, load, override


def from_file(directory: Path, text: str) -> Settings:
    (directory / "endwell.toml").write_text(text)
    return load({}, directory)


def test_without_any_source_every_setting_has_its_default(tmp_path: Path) -> None:
    loaded = load({"PATH": "/bin", "ENDWELL_TASK_ID": "x"}, tmp_path)
    assert loaded == Settings()
    assert {described.source for described in describe(loaded)} == {"default"}
    check(loaded)


DEFAULTS = {
    "store": "sqlite:///endwell.db",
    "pmo.watchdog_interval_seconds": 5,
    "pmo.dispatched_retry_seconds": 10,
    "pmo.dispatched_timeout_seconds": 30,
    "pmo.pending_wakeup_seconds": 5,
    "pmo.pending_wakeup_skip_seconds": 300,
    "pmo.active_reap_seconds": 300,
    "pmo.runaway_limit": 10,
    "pmo.crash_limit": 3,
    "pmo.crash_window_seconds": 1800,
    "worker.watchdog_interval_seconds": 5,
    "worker.inbox_processing_timeout_seconds": 300,
    "worker.suspend_timeout_seconds": 30,
    "worker.lease_seconds": 30,
    "worker.heartbeat_seconds": 10,
    "worker.poll_seconds": 1,
    "worker.quiet_poll_seconds": 2.1,
    "worker.drain_seconds": 30,
    "worker.concurrency": 128,
    "worker.step_timeout_seconds": 240,
    "worker.effect_timeout_seconds": 30,
    "worker.effect_margin_seconds": 5,
    "retry.max_retries": 3,
    "retry.base_seconds": 0.5,
    "retry.multiplier": 2,
    "retry.jitter": 0.2,
    "retry.delays": (),
    "task.deadline_seconds": 86400,
    "progress.repeat_limit": 10,
    "progress.stall_seconds": 1800,
    "progress.action": "stop",
    "approval.risks": ("money_movement",),
    "approval.within_seconds": 14400,
    "approval.by": (),
    "human.owner": "",
    "human.remind_seconds": 86400,
    "queue.kind": "native",
    "queue.VISIBILITY_TIMEOUT_S": 300,
    "queue.HEARTBEAT_INTERVAL_S": 30,
    "queue.MAX_RETRIES": 3,
    "queue.RECLAIM_INTERVAL_S": 30,
    "queue.foreign_agents": ("*",),
    "queue.results_kept": 10_000,
    "redis.url": "",
    "redis.prefix": "",
    "redis.block_seconds": 2,
    "nats.url": "",
    "relay.kind": "",
    "relay.url": "",
    "relay.secret": "",
    "relay.events": ("state", "task", "step"),
    "relay.start": "beginning",
    "relay.batch": 100,
    "relay.webhook_batch": 1,
    "relay.timeout_seconds": 10,
    "relay.lease_seconds": 30,
    "relay.tries": 5,
    "relay.retry_seconds": 0.5,
    "relay.pause_seconds": 30,
    "relay.poll_seconds": 5,
    "relay.lag_seconds": 60,
    "doorbell.kind": "auto",
    "app.target": "app:app",
}


def test_documented_keys_and_defaults_are_complete_and_right() -> None:
    assert {key: value for key, value, _ in describe(Settings())} == DEFAULTS


def test_later_sources_win_and_each_value_knows_its_own(tmp_path: Path) -> None:
    (tmp_path / "endwell.toml").write_text(
        'store = "sqlite:///file.db"\n[worker]\nlease_seconds = 8\nheartbeat_seconds = 2\n'
    )
    loaded = load({"ENDWELL__WORKER__LEASE_SECONDS": "9.5"}, tmp_path)
    assert (loaded.worker.lease_seconds, loaded.worker.heartbeat_seconds) == (9.5, 2.0)
    assert loaded.source("worker.lease_seconds") == "ENDWELL__WORKER__LEASE_SECONDS"
    assert loaded.source("worker.heartbeat_seconds") == str(tmp_path / "endwell.toml")
    assert loaded.source("worker.poll_seconds") == "default"
    assert load({"ENDWELL_STORE": "sqlite:///env.db"}, tmp_path).store == "sqlite:///env.db"
    assert load({"ENDWELL_STORE": ""}, tmp_path).store == "sqlite:///file.db"


def test_a_caller_may_override_and_is_named(tmp_path: Path) -> None:
    changed = override(
        Settings(), {"worker.concurrency": 4, "store": "sqlite:///x.db"}, source="--concurrency"
    )
    assert (changed.worker.concurrency, changed.store) == (4, "sqlite:///x.db")
    assert changed.source("worker.concurrency") == "--concurrency"
    assert Settings().sources == {}
    with pytest.raises(BadSetting, match="--concurrency"):
        override(Settings(), {"worker.concurrency": 0}, source="--concurrency")


def test_the_queue_reads_plain_variables_but_prefers_the_prefixed(tmp_path: Path) -> None:
    plain = load({"VISIBILITY_TIMEOUT_S": "60", "MAX_RETRIES": "5"}, tmp_path)
    assert (plain.queue.VISIBILITY_TIMEOUT_S, plain.queue.MAX_RETRIES) == (60.0, 5)
    assert plain.retry.max_retries == 3
    assert plain.source("queue.MAX_RETRIES") == "MAX_RETRIES"
    both = load({"MAX_RETRIES": "5", "ENDWELL__QUEUE__MAX_RETRIES": "6"}, tmp_path)
    assert both.queue.MAX_RETRIES == 6
    assert from_file(tmp_path, "[queue]\nRECLAIM_INTERVAL_S = 7").queue.RECLAIM_INTERVAL_S == 7


@pytest.mark.parametrize(
    ("text", "delays"),
    [("1,5,30", (1, 5, 30)), ("[0, 2.5]", (0, 2.5)), (" 4 ", (4,)), ("", ()), ("[]", ())],
)
def test_a_list_in_the_environment_is_commas_or_json(
    tmp_path: Path, text: str, delays: tuple[float, ...]
) -> None:
    assert load({"ENDWELL__RETRY__DELAYS": text}, tmp_path).retry.delays == delays


@pytest.mark.parametrize(
    ("text", "names"),
    [("ada, bob", ("ada", "bob")), ('["ada"]', ("ada",)), ("", ()), ("[]", ())],
)
def test_names_are_a_list_in_the_environment_too(tmp_path: Path, text: str, names: tuple[str, ...]) -> None:
    assert load({"ENDWELL__APPROVAL__BY": text}, tmp_path).approval.by == names


@pytest.mark.parametrize("key", ["dispatched_timeout_seconds", "pending_wakeup_seconds"])
@pytest.mark.parametrize("value", ["0", "-1"])
def test_an_optional_rule_is_off_at_zero_and_below(tmp_path: Path, key: str, value: str) -> None:
    loaded = load({f"ENDWELL__PMO__{key.upper()}": value}, tmp_path)
    assert loaded.value(f"pmo.{key}") == 0
    check(loaded)


def test_the_public_names_are_these() -> None:
    assert sorted(settings.__all__) == sorted(name for name in settings.__all__ if hasattr(settings, name))


@pytest.mark.covers("S4.18", "S4.19", "S4.20", "S4.29")
def test_with_the_redis_queue_lease_heartbeat_and_retries_come_from_its_own_keys(tmp_path: Path) -> None:
    environ = {
        "ENDWELL__QUEUE__KIND": "redis",
        "ENDWELL__REDIS__URL": "redis://127.0.0.1",
        "VISIBILITY_TIMEOUT_S": "90",
        "HEARTBEAT_INTERVAL_S": "9",
        "MAX_RETRIES": "2",
    }
    settings = as_queued(load(environ, tmp_path))
    check(settings)
    assert (settings.worker.lease_seconds, settings.worker.heartbeat_seconds) == (90.0, 9.0)
    assert settings.retry.max_retries == 2
    assert settings.source("worker.lease_seconds") == "queue.VISIBILITY_TIMEOUT_S"
    usual = as_queued(load({**environ, "ENDWELL__QUEUE__KIND": "native"}, tmp_path))
    assert (usual.worker.lease_seconds, usual.retry.max_retries) == (30.0, 3)
