"""Streams and the relay in the simulator: short histories, each with faults of one kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from endwell.testing.faults.registry import Planned
from endwell.testing.shrinking import describe_failure, simulate
from endwell.testing.simulation import SimulationResult


def lived(seed: int, faults: Sequence[str], *, queue: str = "redis", relay: bool = False) -> SimulationResult:
    """Run half an hour with these faults, one after the other."""
    planned = [Planned(60.0 + 90 * number, name, number) for number, name in enumerate(faults)]
    options: dict[str, Any] = {"hours": 0.5, "orders": 20, "queue": queue, "relay": relay}
    result = simulate(seed, planned, **options)
    assert result.is_good, describe_failure(result)
    return result


def test_a_cursor_moves_only_over_what_was_told() -> None:
    faults = ("answer_of_the_receiver_lost", "supervisor_killed_after_telling")
    result = lived(1, ("receiver_refuses",) * 5 + faults, queue="native", relay=True)
    assert result.faults.keys() >= {"receiver_refuses", "supervisor_killed_after_telling"}


def test_an_entry_that_looks_abandoned_is_not_taken_from_a_holder_that_is_alive() -> None:
    result = lived(2, ("clock_of_the_server_jumps",) * 8)
    assert result.faults["clock_of_the_server_jumps"] >= 5


def test_dead_letters_are_on_their_stream_once_whatever_the_server_forgets() -> None:
    result = lived(3, ("server_forgets_everything", "answer_of_the_server_swallowed", "groups_forgotten") * 2)
    assert result.ended["failed"] >= 1


def test_foreign_workers_that_die_and_wake_too_late_change_nothing() -> None:
    result = lived(4, ("foreign_worker_frozen", "foreign_worker_killed", "entry_resurrected") * 2)
    assert result.faults["foreign_worker_frozen"] + result.faults["foreign_worker_killed"] >= 2


def test_forged_reports_and_entries_change_nothing() -> None:
    result = lived(5, ("stranger_forges_results", "stranger_forges_tool_names") * 8)
    assert result.faults["stranger_forges_results"] >= 3
    assert result.faults["stranger_forges_tool_names"] >= 1


def test_foreign_workers_that_sign_off_leave_no_grant_behind() -> None:
    result = lived(6, ("foreign_worker_signs_off", "foreign_worker_frozen") * 4)
    assert result.faults["foreign_worker_signs_off"] >= 1


def test_orchestrators_that_freeze_while_they_publish_publish_nothing_twice() -> None:
    result = lived(7, ("orchestrator_frozen_while_it_publishes",) * 8)
    assert result.faults["orchestrator_frozen_while_it_publishes"] >= 4
