"""What a heartbeat means: which attempts are stale, which tasks a worker has forgotten, and who is alive."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from endwell.machine.decide import decide
from endwell.machine.decision import Evidence
from endwell.machine.sessions import Renewal, close_session, is_live, open_session, renew_lease
from endwell.model.commands import CloseSession, Heartbeat, HolderEvidence, OpenSession, Reclaim
from endwell.model.session import Session
from endwell.model.status import RUNNING
from endwell.model.task import Task
from endwell.policy.limits import Limits

NOW = 1000
SESSION = Session(
    namespace="n",
    id="s1",
    kind="worker",
    name="w",
    host="h",
    pid=7,
    agents="coder writer",
    concurrency=2,
    started_at=100,
    heartbeat_at=900,
    lease_until=1100,
    ticked_at=950,
)


def held(attempt_id: str | None) -> Task:
    return Task("n", f"task of {attempt_id}", "coder", attempt_id=attempt_id, session_id="s1")


def beat(*attempts: str, **options: Any) -> Heartbeat:
    named = tuple(("task", attempt) for attempt in attempts)
    options = {"lease": 200, **options}
    return Heartbeat(command_id="b", namespace="n", session_id="s1", attempts=named, **options)


def closing(**options: Any) -> CloseSession:
    return CloseSession(command_id="c", namespace="n", session_id="s1", **options)


def renewed(session: Session, command: Heartbeat, *tasks: Task, now: int = NOW) -> Session:
    found = renew_lease(session, tasks, command, now).session
    assert found is not None
    return found


def test_a_session_begins_with_a_lease() -> None:
    opened = open_session(
        OpenSession(
            command_id="o",
            namespace="n",
            session_id="s1",
            kind="worker",
            name="w",
            host="h",
            pid=7,
            agents=("coder", "writer"),
            concurrency=2,
            lease=30,
        ),
        NOW,
    )

    begun = {"started_at": NOW, "heartbeat_at": NOW, "lease_until": NOW + 30, "ticked_at": None}
    assert opened == replace(SESSION, **begun)


def test_a_heartbeat_renews_the_lease_and_reports_running_steps() -> None:
    command = beat("c1.0", doing=(("c1.0", "plan", 5),), tick_age=10)

    assert renew_lease(SESSION, [held("c1.0")], command, NOW) == Renewal(
        replace(
            SESSION,
            heartbeat_at=NOW,
            lease_until=NOW + 200,
            doing='[["c1.0","plan",5]]',
            ticked_at=NOW - 10,
        )
    )


def test_a_heartbeat_that_comes_late_takes_no_lease_away() -> None:
    after = renewed(SESSION, beat(lease=50, tick_age=300), now=880)

    assert (after.heartbeat_at, after.lease_until, after.ticked_at) == (900, 1100, 950)


@pytest.mark.parametrize(
    ("before", "tick_age", "after"),
    [(950, None, 950), (None, None, None), (None, 1, NOW - 1), (None, NOW, 0)],
)
def test_a_worker_whose_supervisor_has_not_ticked_says_nothing_of_it(
    before: int | None, tick_age: int | None, after: int | None
) -> None:
    assert renewed(replace(SESSION, ticked_at=before), beat(tick_age=tick_age)).ticked_at == after


def test_attempts_that_hold_nothing_any_more_are_stale() -> None:
    found = renew_lease(SESSION, [held("c1.1")], beat("c9.0", "c1.1", "c2.0"), NOW)

    assert (found.stale, found.forgotten) == (("c2.0", "c9.0"), ())


def test_a_task_is_forgotten_when_two_heartbeats_in_a_row_do_not_name_it() -> None:
    tasks = [held("c2.0"), held("c1.0"), held("c1.1")]

    once = renew_lease(SESSION, tasks, beat("c1.1"), NOW)
    assert once.session is not None
    assert (once.session.unnamed, once.forgotten) == ("c1.0 c2.0", ())
    twice = renew_lease(once.session, tasks, beat("c2.0"), NOW)
    assert twice.session is not None
    assert (twice.session.unnamed, twice.forgotten) == ("c1.0 c1.1", (held("c1.0"),))


def test_an_attempt_of_an_unanswered_claim_is_not_forgotten() -> None:
    tasks = [held("c1.0"), held("c2.0"), held(None)]

    assert renewed(SESSION, beat(claiming=("c1",)), *tasks).unnamed == " c2.0"
    assert renewed(SESSION, beat(claiming=("c1.0", "c2.0", "")), *tasks).unnamed == "c1.0 c2.0"


@pytest.mark.parametrize("session", [None, replace(SESSION, ended_at=5)])
def test_a_buried_session_stays_buried_and_holds_nothing(session: Session | None) -> None:
    found = renew_lease(session, [held("c1.0")], beat("c1.0", "c2.0"), NOW)

    assert (found.session, sorted(found.stale), found.forgotten) == (None, ["c1.0", "c2.0"], ())


def test_a_session_ends_once_and_says_why() -> None:
    ended = close_session(SESSION, closing(), NOW)

    assert ended == replace(SESSION, ended_at=NOW, end_reason="goodbye")
    assert close_session(ended, closing(reason="again"), NOW + 1) == ended


@pytest.mark.parametrize(("now", "is_buried"), [(1099, False), (1100, True), (1101, True)])
def test_a_session_is_not_ended_before_its_lease_has_lapsed(now: int, is_buried: bool) -> None:
    found = close_session(SESSION, closing(reason="lease_lapsed"), now)

    assert (found.ended_at, found.end_reason) == ((now, "lease_lapsed") if is_buried else (None, None))


@pytest.mark.parametrize(
    ("session", "now", "expected"),
    [
        (SESSION, 1099, True),
        (SESSION, 1100, False),
        (replace(SESSION, ended_at=900), 1000, False),
        (None, 1000, False),
    ],
)
def test_a_session_lives_while_its_lease_holds_and_it_has_not_ended(
    session: Session | None, now: int, expected: bool
) -> None:
    assert is_live(session, now) is expected


@pytest.mark.parametrize(("waited", "code"), [(50, None), (51, "decided_too_late")])
def test_a_reclaim_that_waited_for_the_store_is_decided_again(waited: int, code: str | None) -> None:
    """The supervisor saw nothing while it waited for the lock; the holder may have waited for it as well."""
    task = replace(held("a"), status=RUNNING)
    known = HolderEvidence(holder_is_alive=None, watched_since=0, seen_at=NOW + 500, longest_gap=50)
    command = Reclaim(
        command_id="r", namespace="n", task_id=task.id, attempt_id="a", session_id="s1", evidence=known
    )
    seen = Evidence(session_is_live=False, session=SESSION)
    decision = decide(task, command, NOW + 500 + waited, Limits(), seen)
    assert (decision.refusal.code if decision.refusal is not None else None) == code
