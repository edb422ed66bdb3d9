"""Random walks in a larger world: three sessions, three tasks, two supervisors, any clock values."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from endwell.machine.decide import decide
from endwell.machine.decision import Seen
from endwell.machine.evolve import evolve, fold, stamp
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.task import ErrorInfo, Task, Wait
from endwell.policy.limits import SECOND, Limits
from endwell.policy.retry import RetryPolicy, pack
from tests.machine.invariants import check_keys, check_state, has_turn
from tests.machine.rules_of_ownership import TERMINAL_FACTS
from tests.machine.steps import take

TASKS = ("t1", "t2", "t3")  # the first two share an agent's key
SESSIONS = ("s1", "s2", "s3")
seconds = st.integers(0, 120).map(lambda count: count * SECOND)
task_ids = st.sampled_from(TASKS)
errors = st.builds(ErrorInfo, code=st.sampled_from(["exception", "bad_input"]), retryable=st.booleans())
policies = st.none() | st.builds(
    RetryPolicy, max_retries=st.integers(0, 5), delays=st.lists(st.floats(0, 9), max_size=3).map(tuple)
)
limits = st.builds(
    Limits,
    retry=policies.filter(bool),
    ring_after=st.none() | st.integers(5, 30).map(lambda count: count * SECOND),
    dispatch_timeout=st.none() | st.integers(10, 60).map(lambda count: count * SECOND),
    active_reap=st.none() | st.integers(10, 300).map(lambda count: count * SECOND),
    remind_every=st.integers(30, 300).map(lambda count: count * SECOND),
    runaway_limit=st.integers(2, 12),
    crash_limit=st.integers(1, 4),
    crash_window=st.integers(30, 300).map(lambda count: count * SECOND),
)
FIRINGS_TO_AN_END = 1000


class Worlds(RuleBasedStateMachine):
    """Every rule is somebody who does something; what comes of it is checked and kept as a log."""

    @initialize(limits=limits)
    def begin(self, limits: Limits) -> None:
        self.limits = limits
        self.now = 1_000_000 * SECOND
        self.tasks: dict[str, Task] = {}
        self.log: dict[str, list[tuple[str, bytes, int]]] = {task_id: [] for task_id in TASKS}
        self.live = dict.fromkeys(SESSIONS, True)
        self.attempts: list[str] = ["nobody's"]

    def give(self, kind: type[c.TaskCommand], task_id: str, *, late: int = 0, **options: Any) -> None:
        """Give the command, decided by a clock that is `late`."""
        command = kind(command_id="x", namespace="n", task_id=task_id, actor="somebody", **options)
        task = self.tasks.get(task_id)
        now = max(self.now - late, task.updated_at if task else 0)
        seen = self._seen(task_id, options.get("session_id"))
        decision = decide(task, command, self.now - late, self.limits, seen)
        after = take(task, command, decision, now, self.limits, seen)
        if after is not None:
            self.tasks[task_id] = after
        self.log[task_id] += [(fact.type, f.encode(fact), now) for fact in decision.facts]

    def _seen(self, task_id: str, session_id: str | None) -> Seen:
        holders = [t.id for t in self.tasks.values() if t.agent_key and has_turn(t)]
        holder = holders[0] if holders and task_id in TASKS[:2] else None
        return Seen(session_is_live=self.live.get(session_id or "", True), key_holder=holder)

    @rule(task_id=task_ids, delay=seconds, deadline=seconds, approval=st.none() | seconds, policy=policies)
    def submit(
        self, task_id: str, delay: int, deadline: int, approval: int | None, policy: RetryPolicy | None
    ) -> None:
        self.give(
            c.Submit,
            task_id,
            agent="coder",
            agent_key="k" if task_id in TASKS[:2] else None,
            payload=b"",
            payload_hash="h",
            delay=delay,
            deadline=deadline + 60 * SECOND,
            approval_within=approval,
            retry_policy=None if policy is None else pack(policy),
        )

    @rule(passed=seconds)
    def time_passes(self, passed: int) -> None:
        self.now += passed

    @rule(session=st.sampled_from(SESSIONS))
    def a_lease_lapses_or_is_renewed(self, session: str) -> None:
        self.live[session] = not self.live[session]

    @rule(task_id=task_ids)
    def a_supervisor_dispatches(self, task_id: str) -> None:
        self.give(c.Dispatch, task_id)

    @rule(task_id=task_ids, session=st.sampled_from(SESSIONS))
    def a_worker_claims(self, task_id: str, session: str) -> None:
        self.attempts.append(f"a{len(self.attempts)}")
        self.give(c.Claim, task_id, attempt_id=self.attempts[-1], session_id=session)

    @rule(task_id=task_ids, fraction=st.floats(0, 1, exclude_max=True), late=seconds)
    def a_supervisor_sees_the_clock(self, task_id: str, fraction: float, late: int) -> None:
        self.give(c.ClockFired, task_id, fraction=fraction, late=late)

    @precondition(lambda self: any(not task.is_ended for task in self.tasks.values()))
    @rule(data=st.data())
    def the_next_clock_is_waited_for(self, data: st.DataObject) -> None:
        live = [task for task in self.tasks.values() if not task.is_ended]
        task = data.draw(st.sampled_from(live))
        self.now = max(self.now, task.clock_at or 0)
        self.give(c.ClockFired, task.id)

    def _an_attempt(self, task_id: str, data: st.DataObject) -> str:
        """Mostly the one that holds the task, else any that ever lived."""
        holder = self.tasks[task_id].attempt_id if task_id in self.tasks else None
        old = st.sampled_from(self.attempts)
        return data.draw(old if holder is None else st.just(holder) | old, label="attempt")

    @rule(task_id=task_ids, data=st.data(), goes_on=st.booleans())
    def a_worker_goes_on_or_goes_away(self, task_id: str, data: st.DataObject, goes_on: bool) -> None:
        kind = c.Progress if goes_on else c.HandBack
        self.give(kind, task_id, attempt_id=self._an_attempt(task_id, data))

    @rule(task_id=task_ids, data=st.data())
    def a_worker_finishes(self, task_id: str, data: st.DataObject) -> None:
        attempt = self._an_attempt(task_id, data)
        self.give(c.Finish, task_id, attempt_id=attempt, result=b"1", result_hash="r")

    @rule(task_id=task_ids, data=st.data(), error=errors, after=st.none() | seconds)
    def a_worker_fails(self, task_id: str, data: st.DataObject, error: ErrorInfo, after: int | None) -> None:
        attempt = self._an_attempt(task_id, data)
        self.give(c.FailTurn, task_id, attempt_id=attempt, error=error, retry_after=after)

    @rule(task_id=task_ids, data=st.data(), deadlines=st.lists(seconds, max_size=3))
    def a_worker_suspends(self, task_id: str, data: st.DataObject, deadlines: list[int]) -> None:
        waits = tuple(Wait(f"w{n}", "tool", self.now + at) for n, at in enumerate(deadlines))
        self.give(c.Suspend, task_id, attempt_id=self._an_attempt(task_id, data), waits=waits)

    @rule(task_id=task_ids, data=st.data(), reason=st.sampled_from(["lease_lapsed", "unnamed"]))
    def a_supervisor_reclaims(self, task_id: str, data: st.DataObject, reason: str) -> None:
        attempt = self._an_attempt(task_id, data)
        task = self.tasks.get(task_id)
        session = (task.session_id if task else None) or "s1"
        self.give(c.Reclaim, task_id, attempt_id=attempt, session_id=session, reason=reason)

    @rule(task_id=task_ids, number=st.integers(0, 3))
    def an_answer_arrives(self, task_id: str, number: int) -> None:
        self.give(c.Answer, task_id, tool_call_id=f"w{number}", result_card="card")

    @rule(task_id=task_ids, cooldown=st.none() | seconds)
    def somebody_blocks(self, task_id: str, cooldown: int | None) -> None:
        self.give(c.Block, task_id, reason="why", cooldown=cooldown)

    @rule(task_id=task_ids, kind=st.sampled_from([c.Approve, c.Reject, c.RunNow, c.Abandon]))
    def a_person_decides(self, task_id: str, kind: type[c.TaskCommand]) -> None:
        self.give(kind, task_id)

    @precondition(lambda self: len(self.tasks) > 1)
    @rule(task_id=task_ids)
    def a_person_cancels(self, task_id: str) -> None:
        self.give(c.Cancel, task_id)

    @rule(task_id=task_ids)
    def a_person_tries_again(self, task_id: str) -> None:
        self.give(c.Replay, task_id, new_task_id="again", payload=b"", payload_hash="h")

    @invariant()
    def every_task_is_sound(self) -> None:
        for task in self.tasks.values():
            check_state(task, self.limits)
        check_keys(list(self.tasks.values()))

    @invariant()
    def the_log_tells_the_same_story(self) -> None:
        for task_id, task in self.tasks.items():
            folded: Task | None = None
            for type_, data, at in self.log[task_id]:
                folded = evolve(folded, f.decode(type_, 1, data), at, namespace="n", task_id=task_id)
            assert folded == task

    @invariant()
    def stamping_once_after_many_facts_is_the_same(self) -> None:
        for task_id, task in self.tasks.items():
            folded: Task | None = None
            for type_, data, at in self.log[task_id]:
                folded = fold(folded, f.decode(type_, 1, data), at, namespace="n", task_id=task_id)
            assert folded is not None
            assert stamp(folded, task.version, task.updated_at, task.head_hash) == task

    @invariant()
    def every_turn_and_every_task_ended_at_most_once(self) -> None:
        for task_id, task in self.tasks.items():
            facts = [f.decode(type_, 1, data) for type_, data, _ in self.log[task_id]]
            turns = [fact.turn_id for fact in facts if isinstance(fact, f.TurnEnded)]
            assert len(turns) == len(set(turns))
            assert sum(isinstance(fact, TERMINAL_FACTS) for fact in facts) == task.is_ended

    def teardown(self) -> None:
        """Whatever happened: clocks alone bring every task to its end, or remind the person who holds it."""
        for task_id in getattr(self, "tasks", ()):
            for _ in range(FIRINGS_TO_AN_END):
                task = self.tasks[task_id]
                if task.is_ended or task.held_since is not None:
                    break
                self.now = max(self.now, task.clock_at or 0)
                self.give(c.ClockFired, task_id)
            assert self.tasks[task_id].is_ended or self.tasks[task_id].remind_at is not None


TestRandomWalks = Worlds.TestCase
TestRandomWalks.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
