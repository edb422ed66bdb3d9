"""Settings: defaults, sources, refusals that name their source, and impossible combinations."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endwell import settings
from endwell.errors import BadSetting
from endwell.settings import Settings, as_queued, check, describe, load, mask_url, override
from endwell.settings.store_url import sqlite_path


def from_file(directory: Path, text: str) -> Settings:
    (directory / "endwell.toml").write_text(text)
    return load({}, directory)


def refusal(directory: Path, environ: dict[str, str], text: str = "") -> BadSetting:
    (directory / "endwell.toml").write_text(text)
    with pytest.raises(BadSetting) as caught:
        load(environ, directory)
    return caught.value


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


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("worker.lease_seconds", "soon", "must be a number, not 'soon'"),
        ("worker.lease_seconds", "", "must be a number, not ''"),
        ("worker.lease_seconds", "nan", "finite"),
        ("worker.lease_seconds", "inf", "finite"),
        ("worker.lease_seconds", "0.01", "at least 0.05"),
        ("worker.lease_seconds", "-3", "at least 0.05"),
        ("worker.lease_seconds", "1e300", "too large"),
        ("pmo.dispatched_timeout_seconds", "0.01", "or 0 to switch it off"),
        ("worker.concurrency", "2.5", "whole number"),
        ("worker.concurrency", "0", "between 1 and"),
        ("worker.concurrency", "9" * 30, "between 1 and"),
        ("retry.max_retries", "-1", "between 0 and"),
        ("retry.jitter", "1.5", "between 0 and 1"),
        ("retry.multiplier", "0.5", "at least 1"),
        ("retry.delays", "1,x", "a list such as 1,5,30"),
        ("retry.delays", "[1", "a list such as 1,5,30"),
        ("retry.delays", "1,-1", "negative"),
        ("retry.delays", "1,inf", "finite"),
        ("retry.delays", '["1"]', "must be a number, not '1'"),
        ("approval.by", "[1]", "a list of texts"),
        ("approval.by", '["ada", " "]', "a list of texts"),
        ("queue.kind", "kafka", "must be one of native, redis"),
    ],
)
def test_a_bad_variable_is_refused_by_key_variable_and_problem(
    tmp_path: Path, key: str, text: str, problem: str
) -> None:
    variable = "ENDWELL__" + key.upper().replace(".", "__")
    error = refusal(tmp_path, {variable: text})
    assert error.field == key
    assert all(part in error.message for part in (key, variable, problem))


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ("[worker]\nlease_seconds = '30'", "worker.lease_seconds", "must be a number"),
        ("[worker]\nlease_seconds = true", "worker.lease_seconds", "must be a number"),
        ("[worker]\nlease_seconds = 1" + "0" * 400, "worker.lease_seconds", "too large"),
        ("[worker]\nconcurrency = 2.0", "worker.concurrency", "whole number"),
        ("[worker]\nconcurrency = true", "worker.concurrency", "whole number"),
        ("[retry]\ndelays = 5", "retry.delays", "list of seconds"),
        ("[redis]\nurl = 5", "redis.url", "must be text"),
        ("store = 5", "store", "must be text"),
        ("worker = 5", "worker", "write [worker]"),
    ],
)
def test_a_bad_value_in_the_file_is_refused_by_key_file_and_problem(
    tmp_path: Path, text: str, key: str, problem: str
) -> None:
    error = refusal(tmp_path, {}, text)
    assert error.field == key
    assert all(part in error.message for part in (key, "endwell.toml", problem))


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("[pmo]\nrunaway_limt = 3", "pmo.runaway_limit"),
        ("[wroker]\nlease_seconds = 3", "worker.lease_seconds"),
        ("stoer = 'x'", "store"),
        ("[queue]\nmax_retries = 3", "queue.MAX_RETRIES"),
        ("[worker.lease_seconds]\nx = 3", None),
    ],
)
def test_an_unknown_key_in_the_file_names_the_nearest(tmp_path: Path, text: str, near: str | None) -> None:
    error = refusal(tmp_path, {}, text)
    assert "endwell.toml" in error.message
    if near is not None:
        assert f"did you mean {near}?" in error.message


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("ENDWELL__WORKER__LEASE_SECOND", "ENDWELL__WORKER__LEASE_SECONDS"),
        ("ENDWELL__STORE", "ENDWELL_STORE"),
        ("ENDWELL__PMO_RUNAWAY_LIMIT", "ENDWELL__PMO__RUNAWAY_LIMIT"),
    ],
)
def test_an_unknown_variable_names_the_nearest(tmp_path: Path, variable: str, near: str) -> None:
    error = refusal(tmp_path, {variable: "1"})
    assert variable in error.message
    assert error.hint == f"did you mean {near}?"


def test_a_key_without_a_near_match_points_to_the_list(tmp_path: Path) -> None:
    assert "config show" in refusal(tmp_path, {}, "qqq = 1").message


@pytest.mark.parametrize("content", [b"[pmo\n", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "endwell.toml").write_bytes(content)
    with pytest.raises(BadSetting, match=r"endwell\.toml cannot be read"):
        load({}, tmp_path)


def test_a_directory_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "endwell.toml").mkdir()
    with pytest.raises(BadSetting, match="cannot be read"):
        load({}, tmp_path)


def checked(**values: object) -> str:
    changed = override(Settings(), {k.replace("__", "."): v for k, v in values.items()}, source="here")
    with pytest.raises(BadSetting) as caught:
        check(changed)
    return caught.value.message


def test_a_heartbeat_must_be_shorter_than_half_the_lease() -> None:
    message = checked(worker__lease_seconds=20)
    assert "worker.heartbeat_seconds = 10 (default)" in message
    assert "worker.lease_seconds = 20 (here)" in message
    check(override(Settings(), {"worker.heartbeat_seconds": 9.9, "worker.lease_seconds": 20}, source="here"))


def test_a_lease_has_a_shortest_length() -> None:
    assert "at least 0.1" in checked(worker__lease_seconds=0.09)


def test_legal_executions_must_stay_below_the_runaway_limit() -> None:
    assert "6 + 1 + 3 = 10 times" in checked(retry__max_retries=6)
    check(override(Settings(), {"retry.max_retries": 5}, source="here"))


def test_a_dispatch_is_rung_again_before_it_times_out() -> None:
    assert "shorter than pmo.dispatched_timeout_seconds = 10 (here)" in checked(
        pmo__dispatched_timeout_seconds=10
    )
    for off in ("pmo.dispatched_timeout_seconds", "pmo.dispatched_retry_seconds"):
        check(override(Settings(), {off: 0}, source="here"))


@pytest.mark.parametrize("kind", ["redis", "nats"])
def test_a_doorbell_without_its_server_is_refused(kind: str) -> None:
    assert f"{kind}.url is not set" in checked(doorbell__kind=kind)
    url = {"redis": "redis://cache", "nats": "nats://one,tls://two"}[kind]
    check(override(Settings(), {"doorbell.kind": kind, f"{kind}.url": url}, source="here"))


def test_a_server_of_another_kind_is_refused_without_showing_its_password() -> None:
    said = checked(redis__url="nats://me:hunter2@bus")
    assert "redis.url (here) must begin with redis://" in said
    assert "hunter2" not in said
    assert "nats.url (here) must begin with nats://" in checked(nats__url="nats://one,http://two")


def test_an_unknown_doorbell_is_refused() -> None:
    with pytest.raises(BadSetting, match="one of auto, store, redis, nats, not 'kafka'"):
        override(Settings(), {"doorbell.kind": "kafka"}, source="here")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@db/prod", "postgresql://me:***@db/prod"),
        ("postgresql://me@db:5432/prod", "postgresql://me@db:5432/prod"),
        ("postgresql://me:p@ss/w:rd@db/prod", "postgresql://me:***@db/prod"),
        (
            "postgresql://db/prod?user=me&password=hunter2&x=1",
            "postgresql://db/prod?user=me&password=***&x=1",
        ),
        ("host=db password='hun ter2' user=me", "host=db password=*** user=me"),
        ("redis://:hunter2@cache:6379/0", "redis://:***@cache:6379/0"),
        ("nats://t0ken@bus", "nats://***@bus"),
        ("nats://a:b@one,nats://c:d@two", "nats://a:***@one,nats://c:***@two"),
        ("sqlite:///endwell.db", "sqlite:///endwell.db"),
        ("sqlite:////data/a:b@c.db", "sqlite:////data/a:b@c.db"),
        ("postgres//me:hunter2@db/prod", "postgres//***@db/prod"),
        ("postgresql:/me:hunter2@db", "postgresql:/***@db"),
        ("postgresql:///me:hunter2@db", "postgresql:///***@db"),
        ("me:hunter2@db/prod", "me:***@db/prod"),
        ("postgresql://me:hunter2/prod", "postgresql://me:***/prod"),
        ("postgresql://db:5432/prod", "postgresql://db:5432/prod"),
        ("https://t0ken@hooks.test/a", "https://***@hooks.test/***"),
        ("https://hooks.test:8443/services/T0/B0?sig=x", "https://hooks.test:8443/***"),
        ("https://hooks.test?t0ken", "https://hooks.test/***"),
        ("https://hooks.test", "https://hooks.test"),
        ("https://hooks.test:t0ken/", "https://hooks.test/***"),
        (" https://hooks.test/t0ken", " https://hooks.test/***"),
        ("https://hooks.test\\t0ken", "https://hooks.test/***"),
        ("htps://hooks.test/t0ken", "htps://hooks.test/***"),
        ("http//hooks.test/t0ken", "http//hooks.test/***"),
        ("ftp://t0ken@hooks.test/t0ken", "ftp://***@hooks.test/***"),
        ("https://hooks.test/a?to=me@t0ken", "https://***"),
        ("https://hooks.test:8443:", "https://hooks.test:8443:"),
        ("https://hooks.test;t0ken", "https://hooks.test/***"),
        ("redis://cache:6379: it does not answer", "redis://cache:6379: it does not answer"),
        ("redis://cache:6379:hunter2", "redis://cache:***"),
        ("postgresql://me@db:hunter2/prod", "postgresql://me@db:***/prod"),
        ("postgresql://me:hunter2@db:hunter2/prod", "postgresql://me:***@db:***/prod"),
        ("postgresql://one:5432,two:hunter2/prod", "postgresql://one:5432,two:***/prod"),
        ("postgresql://me@one:5432,two:5433/prod", "postgresql://me@one:5432,two:5433/prod"),
        ("postgresql://me@db/prod?pass=hunter2&pw=hunter2", "postgresql://me@db/prod?pass=***&pw=***"),
        ("redis://t0ken@cache", "redis://***@cache"),
        ("valkeys://t0ken@cache:1/0", "valkeys://***@cache:1/0"),
        ("postgresql://me%3Ahunter2@db/prod", "postgresql://***@db/prod"),
        ("", ""),
    ],
)
def test_passwords_are_masked(url: str, shown: str) -> None:
    assert mask_url(url) == shown
    assert mask_url(shown) == shown, "what is masked twice stays readable"


@pytest.mark.parametrize("url", ["hooks.test/t0ken", "hooks.test?t0ken", "https://hooks.test/t0ken"])
def test_only_the_host_of_a_webhook_is_shown_even_without_a_scheme(url: str) -> None:
    settings = override(Settings(), {"relay.url": url}, source="here")
    shown = {each.key: each.value for each in describe(settings)}
    assert shown["relay.url"] == f"{url.partition('t0ken')[0][:-1]}/***"


def test_options_of_a_sqlite_url_are_refused_without_their_values() -> None:
    with pytest.raises(BadSetting, match=r"key=\*\*\*'"):
        sqlite_path("sqlite:///endwell.db?key=hunter2")


SECRET = "hunter2"
_SCHEME = st.sampled_from(
    ["postgresql", "postgres", "redis", "nats", "https", "HTTP", "wss", "", "pg", "x+y"]
)
_GAP = st.sampled_from(["://", ":/", "//", ":", ":///", ";//", "/", ""])
_USER = st.sampled_from(["", "me", "m%40e", "a.b"])
_PASSWORD = st.sampled_from(
    [SECRET, f"{SECRET}/x", f"a@{SECRET}", f"{SECRET}:y", f"{SECRET}?z", f"#{SECRET}"]
)
_TAIL = st.sampled_from(["db", "db:5432/x", "db/x?y=1", "[::1]/x", ""])


@given(_SCHEME, _GAP, _USER, _PASSWORD, _TAIL)
def test_no_mistyped_url_shows_its_password(
    scheme: str, gap: str, user: str, password: str, tail: str
) -> None:
    assert SECRET not in mask_url(f"{scheme}{gap}{user}:{password}@{tail}")


@given(
    st.sampled_from(["https://", "http:/", "HTTPS://", "htps://", "http//", "hook:/", " https:"]),
    st.sampled_from(["db", "db:8443", "[::1]"]),
    st.sampled_from("/?#@"),
)
def test_no_web_address_shows_more_than_its_host(scheme: str, host: str, mark: str) -> None:
    secret = f"{SECRET}@{host}" if mark == "@" else f"{host}{mark}{SECRET}/{SECRET}?a={SECRET}"
    assert SECRET not in mask_url(scheme + secret)


def test_described_settings_hold_no_password(tmp_path: Path) -> None:
    urls = {
        "ENDWELL_STORE": "postgresql://me:hunter2@db/prod",
        "ENDWELL__REDIS__URL": "redis://:hunter2@cache",
        "ENDWELL__NATS__URL": "nats://me:hunter2@bus",
    }
    described = describe(load(urls, tmp_path))
    assert "hunter2" not in repr(described)
    assert ("store", "postgresql://me:***@db/prod", "ENDWELL_STORE") in described


def test_a_wrong_type_is_refused_without_showing_what_may_be_a_password(tmp_path: Path) -> None:
    assert "hunter2" not in refusal(tmp_path, {}, "store = ['postgresql://me:hunter2@db']").message


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


def test_the_redis_queue_without_a_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"redis\.url is not set"):
        check(load({"ENDWELL__QUEUE__KIND": "redis"}, tmp_path))


def test_a_visibility_timeout_that_one_late_heartbeat_would_cost_is_refused(tmp_path: Path) -> None:
    environ = {
        "ENDWELL__QUEUE__KIND": "redis",
        "ENDWELL__REDIS__URL": "redis://127.0.0.1",
        "VISIBILITY_TIMEOUT_S": "60",
    }
    with pytest.raises(BadSetting, match=r"queue\.VISIBILITY_TIMEOUT_S"):
        check(as_queued(load(environ, tmp_path)))
