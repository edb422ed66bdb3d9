"""Limits are the settings in the machine's units, and without settings the defaults of the settings."""

from __future__ import annotations

import pytest
from msgspec.structs import asdict

from endwell.model.moments import SECOND
from endwell.policy.limits import Limits
from endwell.policy.retry import RetryPolicy
from endwell.settings import Settings, override

SWITCHES = {
    "pmo.dispatched_retry_seconds": "ring_after",
    "pmo.dispatched_timeout_seconds": "dispatch_timeout",
    "progress.repeat_limit": "repeat_limit",
    "progress.stall_seconds": "stall_after",
}
VALUES = {
    "retry.max_retries": (7, {"retry": RetryPolicy(max_retries=7)}),
    "retry.base_seconds": (1.5, {"retry": RetryPolicy(base_seconds=1.5)}),
    "retry.multiplier": (3.0, {"retry": RetryPolicy(multiplier=3.0)}),
    "retry.jitter": (0.1, {"retry": RetryPolicy(jitter=0.1)}),
    "retry.delays": ([1.0, 2.0], {"retry": RetryPolicy(delays=(1.0, 2.0))}),
    "task.deadline_seconds": (60.5, {"deadline": 60_500_000}),
    "pmo.dispatched_retry_seconds": (1.5, {"ring_after": 1_500_000}),
    "pmo.dispatched_timeout_seconds": (2.5, {"dispatch_timeout": 2_500_000}),
    "pmo.active_reap_seconds": (3.5, {"active_reap": 3_500_000}),
    "worker.suspend_timeout_seconds": (4.5, {"suspend_grace": 4_500_000}),
    "worker.lease_seconds": (45.5, {"step_grace": 45_500_000}),
    "worker.effect_margin_seconds": (6.5, {"effect_margin": 6_500_000}),
    "human.remind_seconds": (7.5, {"remind_every": 7_500_000}),
    "pmo.runaway_limit": (20, {"runaway_limit": 20}),
    "pmo.crash_limit": (5, {"crash_limit": 5}),
    "pmo.crash_window_seconds": (8.5, {"crash_window": 8_500_000}),
    "progress.repeat_limit": (4, {"repeat_limit": 4}),
    "progress.stall_seconds": (9.5, {"stall_after": 9_500_000}),
    "progress.action": ("nudge", {"stops_loops": False}),
}


def test_without_settings_limits_are_those_of_the_default_settings() -> None:
    assert Limits() == Limits.of(Settings(), "operator")
    assert Limits(owner="ada").owner == Limits.of(Settings(), "ada").owner == "ada"


@pytest.mark.parametrize("name", VALUES)
def test_each_setting_is_the_limit_of_its_name_and_no_other(name: str) -> None:
    value, expected = VALUES[name]
    plain = Limits.of(Settings(), "ada")
    found = asdict(Limits.of(override(Settings(), {name: value}, source="test"), "ada"))

    assert {field: new for field, new in found.items() if new != asdict(plain)[field]} == expected


@pytest.mark.parametrize("name", SWITCHES)
def test_none_switches_a_rule_off(name: str) -> None:
    limits = Limits.of(override(Settings(), {name: 0}, source="test"), "ada")

    assert getattr(limits, SWITCHES[name]) is None


def test_a_second_has_a_million_microseconds() -> None:
    assert SECOND == 1_000_000


def test_a_rule_may_be_quicker_than_a_second() -> None:
    limits = Limits.of(override(Settings(), {"pmo.dispatched_retry_seconds": 0.5}, source="test"), "ada")

    assert limits.ring_after == SECOND // 2
