"""Tests of the oracle: it finds small defects that are planted while it watches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from endwell.errors import Fail
from endwell.machine import approvals, submission
from endwell.machine.table import ANYONE, TABLE
from endwell.model import commands as c
from endwell.policy import ledger
from endwell.store.sqlite import row_writer
from endwell.store.working_set import WorkingSet
from endwell.testing import workload
from endwell.testing.faults.registry import Planned
from endwell.testing.installation import installation_for
from endwell.testing.oracle.judging import Violation
from endwell.testing.oracle.registry import INVARIANTS
from endwell.testing.shrinking import describe_failure, shrink, simulate
from endwell.testing.simulation import SimulationResult
from endwell.turn.recorder import Recorder
from endwell.worker import worker
from tests.machine.planting import change_rule

Plant = Callable[[pytest.MonkeyPatch], None]


def first_failure(seeds: range) -> SimulationResult:
    """Return the first failed history of these seeds."""
    found = next((result for seed in seeds if not (result := simulate(seed)).is_good), None)
    assert found is not None, "the oracle has noticed nothing"
    return found


def effects_without_a_ledger(patch: pytest.MonkeyPatch) -> None:
    """Let every attempt execute an effect."""
    patch.setattr(ledger, "answer", lambda effect, *, now, timeout, **_: ledger.AllowExecute(now + timeout))


def anybody_may_write(patch: pytest.MonkeyPatch) -> None:
    """Do not compare attempts."""
    for kind in TABLE:
        change_rule(patch, kind, by=ANYONE)


def a_counter_is_not_written(patch: pytest.MonkeyPatch) -> None:
    """Write a retry to the log and not to the row of its task."""
    moved_row = row_writer._moved_row
    patch.setattr(row_writer, "_moved_row", lambda task, seen: moved_row(replace(task, retry_count=0), seen))


def waits_are_not_dropped(patch: pytest.MonkeyPatch) -> None:
    """Leave the waits of an ended turn open."""
    patch.setattr(
        row_writer, "SIDE_QUERIES", tuple(each for each in row_writer.SIDE_QUERIES if each != "drop_waits")
    )


def records_are_not_read(patch: pytest.MonkeyPatch) -> None:
    """Start a resumed turn without its records."""

    async def nothing(self: Recorder) -> dict[str, Any]:
        return {}

    patch.setattr(Recorder, "_read_records", nothing)


def a_worker_without_a_session_does_not_rest(patch: pytest.MonkeyPatch) -> None:
    """Let a worker without a session ask for work all the time."""

    async def rest(self: worker.Worker) -> None:
        if self._session.is_good:
            await self._runtime.wait(self._wake, self._settings.poll_seconds)
            self._wake.clear()
            self._source.may_have_work = True

    patch.setattr(worker.Worker, "_wait_for_work", rest)


def registered_rules_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Apply only the approval rule of the submitter's copy of the code."""
    patch.setattr(WorkingSet, "rules", lambda self, namespace, agent: ())


def an_approval_counts_for_every_payload(patch: pytest.MonkeyPatch) -> None:
    """Do not compare a replay with the payload that was approved."""
    request = approvals.request_before_start

    def careless(command: c.Submit, *rest: Any) -> Any:
        if isinstance(command, c.Resubmit):
            command = replace(command, approved_hash=command.payload_hash)
        return request(command, *rest)

    patch.setattr(submission, "request_before_start", careless)


@pytest.mark.parametrize(
    ("plant", "caught_by"),
    [
        (registered_rules_are_not_looked_at, {"what_needs_an_approval_has_one_for_its_payload"}),
        (effects_without_a_ledger, {"effects_happen_at_most_once"}),
        (anybody_may_write, {"stale_write", "writes_name_the_holder"}),
        (a_counter_is_not_written, {"the_fold_is_the_row"}),
        (waits_are_not_dropped, {"every_row_beside_is_the_fold_of_its_log"}),
        (records_are_not_read, {"what_is_recorded_is_not_computed_again", "a_decision_is_made_once"}),
        (a_worker_without_a_session_does_not_rest, {"nobody_spins"}),
    ],
)
def test_a_planted_defect_is_found(
    plant: Plant, caught_by: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert first_failure(range(9, 33)).violations[0].invariant in caught_by


def test_a_replay_with_another_payload_that_evades_the_approval_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guarded tasks fail often here, and people change the approved payload."""
    plan = [Planned(200.0 + 300 * number, "replayed_otherwise", number) for number in range(12)]
    failing = [
        workload.TaskOrder(
            60.0 * number,
            "guarded",
            {"kind": "guarded", "n": number, "seconds": 1.0, "steps": 2, "fails": 0, "patience": 300},
            {"key": f"order-{number}", "deadline": 2000},
        )
        for number in range(12)
    ]

    async def fail(self: workload.Workload, ctx: Any, job: Any) -> None:
        raise Fail("the bank is closed")

    monkeypatch.setattr(workload.Workload, "run_payer", fail)
    home = replace(installation_for(3, queue="native", relay=False), orders=tuple(failing))
    honest = simulate(3, plan, installation=home)
    assert honest.is_good, describe_failure(honest)
    assert honest.faults["replayed_otherwise"] >= 3
    an_approval_counts_for_every_payload(monkeypatch)
    found = simulate(3, plan, installation=home)
    assert found.violations[0].invariant == "what_needs_an_approval_has_one_for_its_payload"


def test_a_failure_is_shrunk_to_the_faults_that_it_needs() -> None:
    """Pretend that a history fails whenever it has these two faults."""
    plan = [Planned(float(number), "ring_lost", number) for number in range(40)]
    runs: list[int] = []

    def run(seed: int, faults: Any, **_: Any) -> SimulationResult:
        runs.append(len(faults))
        salts = {fault.salt for fault in faults}
        return _pretended(seed, faults, is_broken={7, 31} <= salts)

    small = shrink(_pretended(1, plan, is_broken=True), run)
    assert [fault.salt for fault in small.plan] == [7, 31]
    assert len(runs) <= 60


def _pretended(seed: int, faults: Any, *, is_broken: bool) -> SimulationResult:
    return SimulationResult(
        seed=seed,
        digest="",
        violations=(Violation("pretended", "It holds.", "it did not"),) if is_broken else (),
        faults=Counter(),
        tasks=0,
        events=0,
        commits=0,
        steps=0,
        judged=0,
        ended=Counter(),
        plan=tuple(faults),
        trace="",
        installation=installation_for(seed),
    )


def test_every_invariant_says_what_must_hold() -> None:
    assert len(INVARIANTS) >= 25
    assert all(one.says.strip().endswith(".") for one in INVARIANTS.values())
