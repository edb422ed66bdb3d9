"""Random walks in a larger world: three sessions, three tasks, two supervisors, any clock values."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from endwell.machine.evolve import fold, stamp
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.moments import SECOND
from endwell.model.task import ErrorInfo, Task
from endwell.policy.limits import Limits
from endwell.policy.retry import RetryPolicy, pack_policy
from tests.machine.walk.invariants import check_keys, check_state
from tests.machine.walk.random_world import SESSIONS, TASKS, RandomWorld
from tests.machine.walk.rules_of_ownership import TERMINAL_FACTS

PEOPLE = ("ada", "bob", "eve")
KINDS = ("tool", "tool", "timer", "approval", "signal", "call")
CONTENT: dict[str, Any] = {"content": b"1", "content_hash": "r"}
KEYS = ("mail", "order")
seconds = st.integers(0, 120).map(lambda count: count * SECOND)
task_ids = st.sampled_from(TASKS)
codes = ("exception", "bad_input", "bad_result", "approval_rejected", "approval_expired")
errors = st.sampled_from(codes).map(
    lambda code: ErrorInfo(code=code, retryable=code in ("exception", "bad_result"))
)
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
    waits_in_row=st.integers(0, 2),
)
FIRINGS_TO_AN_END = 1000


def calls_of(task_id: str, chosen: list[tuple[str, int, bool]]) -> tuple[c.Call, ...]:
    """Waits with an id for each kind and place, so that answers come early, late and to the wrong one."""
    return tuple(
        c.Call(
            tool_call_id=f"{task_id}.s.{kind}{number}",
            kind=kind,  # type: ignore[arg-type]
            within=within,
            name="go" if kind == "signal" else "",
            content=b"1" if has_card else None,
            content_hash="r" if has_card else "s",
            by=("ada", "bob") if has_card else (),
            quorum=2 if has_card else 1,
            is_child=kind == "call",
        )
        for number, (kind, within, has_card) in enumerate(chosen)
    )


class Worlds(RuleBasedStateMachine):
    """Every rule sends a command; its outcome is checked and kept as a log."""

    @initialize(limits=limits)
    def begin(self, limits: Limits) -> None:
        self.world = RandomWorld(limits)
        self.tasks = self.world.tasks
        self.give = self.world.give

    @rule(task_id=task_ids, delay=seconds, deadline=seconds, approval=st.none() | seconds, policy=policies)
    def submit(
        self, task_id: str, delay: int, deadline: int, approval: int | None, policy: RetryPolicy | None
    ) -> None:
        family: dict[str, Any] = {}
        if task_id == "t3":
            family = {"parent_id": "t1", "parent_call": "t1.s.call0", "depth": 1}
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
            retry_policy=None if policy is None else pack_policy(policy),
            **family,
        )

    @rule(passed=seconds)
    def time_passes(self, passed: int) -> None:
        self.world.now += passed

    @rule(session=st.sampled_from(SESSIONS))
    def a_lease_lapses_or_is_renewed(self, session: str) -> None:
        self.world.live[session] = not self.world.live[session]

    @rule(task_id=task_ids)
    def a_supervisor_dispatches(self, task_id: str) -> None:
        self.give(c.Dispatch, task_id)

    @rule(task_id=task_ids, session=st.sampled_from(SESSIONS))
    def a_worker_claims(self, task_id: str, session: str) -> None:
        attempts = self.world.attempts
        attempts.append(f"a{len(attempts)}")
        self.give(c.Claim, task_id, attempt_id=attempts[-1], session_id=session)

    @rule(task_id=task_ids, fraction=st.floats(0, 1, exclude_max=True), late=seconds)
    def a_supervisor_sees_the_clock(self, task_id: str, fraction: float, late: int) -> None:
        self.give(c.ClockFired, task_id, fraction=fraction, late=late)

    @precondition(lambda self: any(not task.is_ended for task in self.tasks.values()))
    @rule(data=st.data())
    def the_next_clock_is_waited_for(self, data: st.DataObject) -> None:
        live = [task for task in self.tasks.values() if not task.is_ended]
        task = data.draw(st.sampled_from(live))
        self.world.now = max(self.world.now, task.clock_at or 0)
        self.give(c.ClockFired, task.id)

    def _an_attempt(self, task_id: str, data: st.DataObject) -> str:
        """Mostly the attempt that holds the task, else any earlier attempt."""
        holder = self.tasks[task_id].attempt_id if task_id in self.tasks else None
        old = st.sampled_from(self.world.attempts)
        return data.draw(old if holder is None else st.just(holder) | old, label="attempt")

    @rule(task_id=task_ids, data=st.data(), goes_on=st.booleans())
    def a_worker_goes_on_or_goes_away(self, task_id: str, data: st.DataObject, goes_on: bool) -> None:
        kind = c.Progress if goes_on else c.HandBack
        self.give(kind, task_id, attempt_id=self._an_attempt(task_id, data))

    @rule(task_id=task_ids, data=st.data(), count=st.sampled_from([3, 10, 20]))
    def a_worker_goes_round_in_circles(self, task_id: str, data: st.DataObject, count: int) -> None:
        attempt = self._an_attempt(task_id, data)
        self.give(c.Repeat, task_id, attempt_id=attempt, about="the same", count=count)
        self.give(c.HearNudges, task_id, attempt_id=attempt)
        self.give(c.Progress, task_id, attempt_id=attempt, without_news=count * 180 * SECOND)

    @rule(task_id=task_ids, data=st.data())
    def a_worker_finishes(self, task_id: str, data: st.DataObject) -> None:
        attempt = self._an_attempt(task_id, data)
        self.give(c.Finish, task_id, attempt_id=attempt, result=b"1", result_hash="r")

    @rule(task_id=task_ids, data=st.data(), error=errors, after=st.none() | seconds)
    def a_worker_fails(self, task_id: str, data: st.DataObject, error: ErrorInfo, after: int | None) -> None:
        attempt = self._an_attempt(task_id, data)
        self.give(c.FailTurn, task_id, attempt_id=attempt, error=error, retry_after=after)

    @rule(task_id=task_ids, data=st.data(), step=st.sampled_from(["long", "short"]), timeout=seconds)
    def a_worker_works(self, task_id: str, data: st.DataObject, step: str, timeout: int) -> None:
        attempt = self._an_attempt(task_id, data)
        self.give(c.StartStep, task_id, attempt_id=attempt, step=step, timeout=timeout)
        self.give(c.KeepDraft, task_id, attempt_id=attempt, **CONTENT)
        if timeout % (2 * SECOND):
            self.give(c.RecordStep, task_id, attempt_id=attempt, step=step, **CONTENT)

    @rule(task_id=task_ids, data=st.data(), key=st.sampled_from(KEYS), args=st.sampled_from("ab"), at=seconds)
    def a_worker_wants_an_effect(
        self, task_id: str, data: st.DataObject, key: str, args: str, at: int
    ) -> None:
        attempt = self._an_attempt(task_id, data)
        self.give(c.IntendEffect, task_id, attempt_id=attempt, step=key, key=key, args_hash=args, timeout=at)

    @rule(task_id=task_ids, data=st.data(), key=st.sampled_from(KEYS), is_done=st.booleans())
    def an_effect_returns_or_fails(self, task_id: str, data: st.DataObject, key: str, is_done: bool) -> None:
        attempt = self._an_attempt(task_id, data)
        if is_done:
            self.give(c.FinishEffect, task_id, attempt_id=attempt, step=key, key=key, **CONTENT)
        else:
            self.give(c.DoubtEffect, task_id, attempt_id=attempt, key=key, reason="it timed out")

    @rule(
        task_id=task_ids,
        data=st.data(),
        key=st.sampled_from(KEYS),
        verdict=st.sampled_from(["done", "not_done", "not_done", "abandon"]),
        is_persons=st.booleans(),
        known=st.fixed_dictionaries({name: st.booleans() for name in ("holder_gone", "call_ended", "force")}),
    )
    def an_effect_is_settled(
        self,
        task_id: str,
        data: st.DataObject,
        key: str,
        verdict: str,
        is_persons: bool,
        known: dict[str, bool],
    ) -> None:
        attempt = None if is_persons else self._an_attempt(task_id, data)
        self.give(c.SettleEffect, task_id, key=key, verdict=verdict, attempt_id=attempt, **known, **CONTENT)

    @rule(
        task_id=task_ids,
        data=st.data(),
        chosen=st.lists(st.tuples(st.sampled_from(KINDS), seconds, st.booleans()), max_size=3),
    )
    def a_worker_suspends(
        self, task_id: str, data: st.DataObject, chosen: list[tuple[str, int, bool]]
    ) -> None:
        calls = calls_of(task_id, chosen)
        self.give(c.Suspend, task_id, attempt_id=self._an_attempt(task_id, data), calls=calls)

    @rule(task_id=task_ids, data=st.data(), reason=st.sampled_from(["lease_lapsed", "unnamed"]))
    def a_supervisor_reclaims(self, task_id: str, data: st.DataObject, reason: str) -> None:
        attempt = self._an_attempt(task_id, data)
        task = self.tasks.get(task_id)
        session = (task.session_id if task else None) or "s1"
        self.give(c.Reclaim, task_id, attempt_id=attempt, session_id=session, reason=reason)

    def _a_call(self, task_id: str, data: st.DataObject) -> str:
        """Mostly a call that the turn waits for."""
        waits = [wait.tool_call_id for wait in self.world.scene(task_id).waits]
        some = [f"{task_id}.s.{kind}{number}" for kind in set(KINDS) for number in range(3)]
        return data.draw(st.sampled_from(waits or sorted(some)) | st.sampled_from(sorted(some)), label="call")

    @rule(task_id=task_ids, data=st.data(), status=st.sampled_from(["success", "failed"]))
    def an_answer_arrives(self, task_id: str, data: st.DataObject, status: str) -> None:
        call = self._a_call(task_id, data)
        self.give(c.Answer, task_id, tool_call_id=call, status=status, **CONTENT)

    @rule(task_id=task_ids, name=st.sampled_from(["go", "come"]))
    def a_signal_arrives(self, task_id: str, name: str) -> None:
        self.give(c.Signal, task_id, name=name, **CONTENT)

    @rule(task_id=task_ids)
    def a_worker_reports_overdue_waits(self, task_id: str) -> None:
        self.give(c.InjectTimeout, task_id)

    @rule(task_id=task_ids, data=st.data())
    def a_message_is_delivered(self, task_id: str, data: st.DataObject) -> None:
        inbox = [message.id for message in self.world.inboxes[task_id]]
        self.give(c.Deliver, task_id, message_id=data.draw(st.sampled_from([*inbox, "nothing"])))

    @rule(task_id=task_ids, data=st.data())
    def a_message_is_skipped(self, task_id: str, data: st.DataObject) -> None:
        inbox = [message.id for message in self.world.inboxes[task_id]]
        message_id = data.draw(st.sampled_from([*inbox, "nothing"]))
        self.give(c.SkipMessage, task_id, message_id=message_id, why="missing_channel")

    @rule(task_id=task_ids, kind=st.sampled_from([c.Approve, c.Reject]), who=st.sampled_from(PEOPLE))
    def a_person_decides(self, task_id: str, kind: type[c.TaskCommand], who: str) -> None:
        self.give(kind, task_id, actor=who)

    @rule(
        task_id=task_ids,
        data=st.data(),
        kind=st.sampled_from([c.Approve, c.Approve, c.Reject]),
        who=st.sampled_from(PEOPLE),
    )
    def a_person_decides_inside_a_turn(
        self, task_id: str, data: st.DataObject, kind: type[c.TaskCommand], who: str
    ) -> None:
        self.give(kind, task_id, approval_id=self._a_call(task_id, data), actor=who)

    @rule(task_id=task_ids, cooldown=st.none() | seconds, reason=st.sampled_from(["why", "effect_unknown"]))
    def somebody_blocks(self, task_id: str, cooldown: int | None, reason: str) -> None:
        self.give(c.Block, task_id, reason=reason, cooldown=cooldown)

    @rule(task_id=task_ids, kind=st.sampled_from([c.RunNow, c.Unblock, c.Abandon]))
    def a_person_acts(self, task_id: str, kind: type[c.TaskCommand]) -> None:
        self.give(kind, task_id)

    @rule(task_id=task_ids, owner=st.sampled_from(PEOPLE))
    def a_task_is_assigned(self, task_id: str, owner: str) -> None:
        self.give(c.Assign, task_id, owner=owner)

    @precondition(lambda self: len(self.tasks) > 1)
    @rule(task_id=task_ids)
    def a_person_cancels(self, task_id: str) -> None:
        self.give(c.Cancel, task_id)

    @precondition(lambda self: "t1" in self.tasks and self.tasks["t1"].is_ended)
    @rule()
    def an_ended_parents_child_is_disowned(self) -> None:
        self.give(c.Disown, "t3", parent_id="t1")

    @rule(task_id=task_ids)
    def a_person_tries_again(self, task_id: str) -> None:
        self.give(c.Replay, task_id, new_task_id="again", payload=b"", payload_hash="h")

    @invariant()
    def every_task_is_sound(self) -> None:
        for task_id in self.tasks:
            check_state(self.world.scene(task_id), self.world.limits)
        check_keys(list(self.tasks.values()))

    @invariant()
    def an_effect_runs_once_and_once_more_after_each_not_done(self) -> None:
        for key, count in self.world.allowed.items():
            assert count <= 1 + self.world.not_done[key]

    @invariant()
    def every_message_is_pending_or_was_dealt_with(self) -> None:
        pending = {message.id for inbox in self.world.inboxes.values() for message in inbox}
        for message_id, status in self.world.messages.items():
            if message_id.endswith("~stop"):
                continue
            assert status in ("consumed", "skipped") or message_id in pending or self._came_twice(message_id)

    def _came_twice(self, message_id: str) -> bool:
        """A second early answer to one call is not taken: the first is."""
        return message_id.startswith("c")

    @invariant()
    def an_ended_child_has_told_its_parent(self) -> None:
        child = self.tasks.get("t3")
        if child is not None and child.is_ended:
            assert "t3~child" in self.world.messages

    def teardown(self) -> None:
        """After any commands, clocks alone bring every task to its end, or remind the person who holds it."""
        if not hasattr(self, "world"):
            return
        for task_id in self.tasks:
            for _ in range(FIRINGS_TO_AN_END):
                task = self.tasks[task_id]
                if task.is_ended or task.held_since is not None:
                    break
                self.world.now = max(self.world.now, task.clock_at or 0)
                self.give(c.ClockFired, task_id)
            assert self.tasks[task_id].is_ended or self.tasks[task_id].remind_at is not None
        self._the_log_tells_the_same_story()
        self._every_turn_and_every_task_ended_at_most_once()
        self._ended_tasks_leave_nothing_pending()

    def _the_log_tells_the_same_story(self) -> None:
        tasks, effects = self.world.replayed()
        assert tasks == self.tasks
        assert effects == self.world.effects
        for task_id, task in self.tasks.items():
            folded: Task | None = None
            for owner, type_, data, at in self.world.log:
                if owner == task_id:
                    folded = fold(folded, f.decode(type_, 1, data), at, namespace="n", task_id=task_id)
            assert folded is not None
            assert stamp(folded, task.version, task.updated_at, task.head_hash) == task

    def _every_turn_and_every_task_ended_at_most_once(self) -> None:
        for task_id, task in self.tasks.items():
            facts = self.world.facts_of(task_id)
            turns = [fact.turn_id for fact in facts if isinstance(fact, f.TurnEnded)]
            assert len(turns) == len(set(turns))
            assert sum(isinstance(fact, TERMINAL_FACTS) for fact in facts) == task.is_ended

    def _ended_tasks_leave_nothing_pending(self) -> None:
        for task_id, task in self.tasks.items():
            for message in self.world.inboxes[task_id]:
                self.give(c.Deliver, task_id, message_id=message.id)
            assert not task.is_ended or self.world.inboxes[task_id] == ()


TestRandomWalks = Worlds.TestCase
TestRandomWalks.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
