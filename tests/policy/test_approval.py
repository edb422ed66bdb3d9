"""Who must agree before something starts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from endwell.errors import BadInput
from endwell.policy.approval import (
    Approval,
    Guard,
    Options,
    checked_guard,
    checked_risk,
    guard_for,
    options_of,
    packed_options,
)
from endwell.settings import Approval as ApprovalSettings

SETTINGS = ApprovalSettings(within_seconds=60.0, by=("boss",))


def test_nobody_is_asked_where_no_rule_says_so() -> None:
    assert guard_for(Options(risk="write_external"), SETTINGS) is None
    assert guard_for(Options(), SETTINGS) is None


def test_a_risk_that_the_settings_name_must_be_agreed_to() -> None:
    guard = guard_for(Options(risk="money_movement"), SETTINGS)

    assert guard == Guard(by=("boss",), within_seconds=60.0, quorum=1)
    assert guard_for(Options(risk="money_movement"), ApprovalSettings(risks=())) is None


def test_what_the_agent_says_itself_goes_before_the_settings() -> None:
    own = checked_guard(Approval(by=("ada", "bob"), within=timedelta(hours=1), quorum=2))

    assert guard_for(Options(approval=own), SETTINGS) == Guard(
        by=("ada", "bob"), within_seconds=3600.0, quorum=2
    )


def test_what_the_agent_leaves_out_the_settings_say() -> None:
    assert guard_for(Options(approval=checked_guard(True)), SETTINGS) == Guard(
        by=("boss",), within_seconds=60.0
    )


@pytest.mark.parametrize(
    ("approval", "field"),
    [
        (Approval(by=("ada",), quorum=2), "quorum"),
        (Approval(quorum=0), "quorum"),
        (Approval(by=("ada", "")), "by"),
        (Approval(by=("a,b",)), "by"),
        (Approval(within=0), "within"),
        (Approval(within=float("nan")), "within"),
        ("ada", "approval"),
    ],
)
def test_a_rule_that_nobody_could_satisfy_is_refused(approval: Any, field: str) -> None:
    with pytest.raises(BadInput) as refusal:
        checked_guard(approval)
    assert (refusal.value.code, refusal.value.field) == ("bad_approval", field)


def test_an_unknown_risk_is_refused() -> None:
    assert checked_risk("read_only") == "read_only"
    with pytest.raises(BadInput, match="money_movement"):
        checked_risk("harmless")


def test_options_are_kept_as_text() -> None:
    options = Options(timeout_seconds=5.0, risk="money_movement", approval=Guard(by=("ada",)))

    assert options_of(packed_options(options)) == options
    assert packed_options(Options()) is None
    assert options_of(None) == Options()
