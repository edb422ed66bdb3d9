"""Who must agree before something starts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from endwell.errors import BadInput
from endwell.policy.approval import (
    AgentOptions,
    Approval,
    Guard,
    checked_guard,
    checked_risk,
    guard_for,
    options_of,
    packed_options,
)
from endwell.settings import ApprovalSettings as ApprovalSettings

SETTINGS = ApprovalSettings(within_seconds=60.0, by=("boss",))


def test_no_approval_is_requested_without_a_rule() -> None:
    assert guard_for(AgentOptions(risk="write_external"), SETTINGS) is None
    assert guard_for(AgentOptions(), SETTINGS) is None


def test_a_risk_that_the_settings_name_must_be_agreed_to() -> None:
    guard = guard_for(AgentOptions(risk="money_movement"), SETTINGS)

    assert guard == Guard(by=("boss",), within_seconds=60.0, quorum=1)
    assert guard_for(AgentOptions(risk="money_movement"), ApprovalSettings(risks=())) is None


def test_an_agents_own_rule_precedes_the_settings() -> None:
    own = checked_guard(Approval(by=("ada", "bob"), within=timedelta(hours=1), quorum=2))

    assert guard_for(AgentOptions(approval=own), SETTINGS) == Guard(
        by=("ada", "bob"), within_seconds=3600.0, quorum=2
    )


def test_settings_fill_in_what_an_agents_rule_leaves_out() -> None:
    assert guard_for(AgentOptions(approval=checked_guard(True)), SETTINGS) == Guard(
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
def test_an_approval_rule_that_cannot_be_satisfied_is_refused(approval: Any, field: str) -> None:
    with pytest.raises(BadInput) as refusal:
        checked_guard(approval)
    assert (refusal.value.code, refusal.value.field) == ("bad_approval", field)


def test_an_unknown_risk_is_refused() -> None:
    assert checked_risk("read_only") == "read_only"
    with pytest.raises(BadInput, match="money_movement"):
        checked_risk("harmless")


def test_options_are_kept_as_text() -> None:
    options = AgentOptions(timeout_seconds=5.0, risk="money_movement", approval=Guard(by=("ada",)))

    assert options_of(packed_options(options)) == options
    assert packed_options(options) == (
        '{"approval":{"by":["ada"]},"risk":"money_movement","timeout_seconds":5.0}'
    )
    assert packed_options(AgentOptions()) is None
    assert options_of(None) == AgentOptions()


TEN_YEARS = 10 * 366 * 86_400


@pytest.mark.parametrize("within", [TEN_YEARS + 1, -1, True, "1"])
def test_an_approval_time_that_is_not_positive_or_too_long_is_refused(within: Any) -> None:
    with pytest.raises(BadInput) as refusal:
        checked_guard(Approval(within=within))
    assert (refusal.value.code, refusal.value.field) == ("bad_approval", "within")


def test_a_time_may_be_anything_up_to_ten_years() -> None:
    assert checked_guard(Approval(within=TEN_YEARS)) == Guard(within_seconds=float(TEN_YEARS))
    assert checked_guard(Approval(within=0.001)) == Guard(within_seconds=0.001)
    assert checked_guard(Approval()) == Guard(within_seconds=None)
    assert checked_guard(False) is None
    assert checked_guard(None) is None


@pytest.mark.parametrize("by", [("ada", 1), ("x" * 201,), ("a\nb",), 5, {"ada"}])
def test_an_approver_has_a_printable_name(by: Any) -> None:
    with pytest.raises(BadInput) as refusal:
        checked_guard(Approval(by=by))
    assert refusal.value.field == "by"


def test_names_may_be_one_text_or_a_list_and_as_long_as_a_name_may_be() -> None:
    assert checked_guard(Approval(by="ada")) == Guard(by=("ada",))  # type: ignore[arg-type]
    assert checked_guard(Approval(by=["x" * 200])) == Guard(by=("x" * 200,))  # type: ignore[arg-type]


@pytest.mark.parametrize("quorum", [True, 1.0, "1", -1])
def test_a_quorum_is_a_whole_number(quorum: Any) -> None:
    with pytest.raises(BadInput) as refusal:
        checked_guard(Approval(quorum=quorum))
    assert refusal.value.field == "quorum"


def test_a_quorum_is_at_most_the_number_of_named_approvers() -> None:
    assert checked_guard(Approval(by=("ada", "bob"), quorum=2)) == Guard(by=("ada", "bob"), quorum=2)
    assert checked_guard(Approval(quorum=9)) == Guard(quorum=9)
    with pytest.raises(BadInput, match="only 1 may decide"):
        checked_guard(Approval(by=("ada", "ada"), quorum=2))


def test_a_refused_risk_is_named_by_its_field() -> None:
    assert checked_risk(None) is None
    with pytest.raises(BadInput) as refusal:
        checked_risk(3)
    assert (refusal.value.code, refusal.value.field) == ("bad_approval", "risk")


def test_an_agents_own_rule_precedes_the_rule_for_its_risk() -> None:
    options = AgentOptions(risk="money_movement", approval=Guard(by=("ada",), within_seconds=5.0, quorum=1))

    assert guard_for(options, SETTINGS) == Guard(by=("ada",), within_seconds=5.0)
