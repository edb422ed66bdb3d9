"""Which agents foreign workers may serve, and which registrations the store gets for them."""

from __future__ import annotations

import pytest

from endwell.model.commands import AgentSpec
from endwell.policy import foreign
from endwell.policy.foreign import ANY, MAX_AGENTS, REGISTERED_FOR, plan_registration, select_served

NOW = 1_000_000 * 1_000_000
OWN = AgentSpec(name="coder")


def registered(name: str, until: int) -> AgentSpec:
    return AgentSpec(name=name, foreign_until=until)


@pytest.mark.parametrize(
    ("wanted", "allowed", "served"),
    [
        (("abroad",), (), ()),
        (("abroad",), ("abroad",), ("abroad",)),
        (("abroad", "other"), (ANY,), ("abroad", "other")),
        (("abroad", "abroad"), (ANY,), ("abroad",)),
        (("coder",), (ANY,), ()),
        (("coder",), ("coder",), ("coder",)),
        (("no name", ""), (ANY, "no name", ""), ()),
    ],
)
def test_foreign_workers_serve_only_agents_that_settings_allow(
    wanted: tuple[str, ...], allowed: tuple[str, ...], served: tuple[str, ...]
) -> None:
    assert select_served([OWN], wanted, allowed) == served


def test_an_agent_that_only_foreign_workers_registered_may_be_served() -> None:
    assert select_served([registered("abroad", NOW)], ["abroad"], [ANY]) == ("abroad",)


def test_foreign_workers_serve_a_limited_number_of_agents() -> None:
    wanted = [f"agent-{number}" for number in range(MAX_AGENTS + 1)]
    assert select_served([], wanted, [ANY]) == tuple(wanted[:MAX_AGENTS])


@pytest.mark.parametrize(
    ("known", "is_registered"),
    [
        ([], True),
        ([registered("abroad", NOW)], True),
        ([registered("abroad", NOW + 1)], True),
        ([registered("abroad", NOW + REGISTERED_FOR // 2)], True),
        ([registered("abroad", NOW + REGISTERED_FOR // 2 + 1)], False),
        ([AgentSpec(name="abroad")], False),
    ],
    ids=["unknown", "expired", "nearly expired", "half over", "fresh", "our own"],
)
def test_a_registration_is_written_when_there_is_none_or_half_of_it_is_over(
    known: list[AgentSpec], is_registered: bool
) -> None:
    planned = plan_registration(known, ["abroad"], ["abroad"], NOW)
    assert planned == ((registered("abroad", NOW + REGISTERED_FOR),) if is_registered else ())


def test_new_registrations_end_at_the_limit_and_live_ones_are_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(foreign, "MAX_AGENTS", 3)
    known = [OWN, registered("one", NOW + 1), registered("two", NOW), registered("three", NOW + 1)]

    planned = plan_registration(known, ["two", "four", "one"], [ANY], NOW)

    assert [spec.name for spec in planned] == ["two", "one"]


def test_all_registrations_of_one_round_count_for_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "MAX_AGENTS", 3)
    known = [registered("one", NOW + REGISTERED_FOR)]

    planned = plan_registration(known, ["two", "three", "four"], [ANY], NOW)

    assert [spec.name for spec in planned] == ["two", "three"]
