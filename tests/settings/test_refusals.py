"""Settings that are refused: what is misspelt or out of range, and combinations that cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest

from endwell.errors import BadSetting
from endwell.settings import Settings, as_queued, check, load, override


def refusal(directory: Path, environ: dict[str, str], text: str = "") -> BadSetting:
    (directory / "endwell.toml").write_text(text)
    with pytest.raises(BadSetting) as caught:
        load(environ, directory)
    return caught.value


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


def test_a_wrong_type_is_refused_without_showing_what_may_be_a_password(tmp_path: Path) -> None:
    assert "hunter2" not in refusal(tmp_path, {}, "store = ['postgresql://me:hunter2@db']").message


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
