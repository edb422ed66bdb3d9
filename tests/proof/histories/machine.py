"""The state machine of Hypothesis: each rule is an actor that does something right or wrong to the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Final

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from endwell.model import commands as c
from endwell.model.card import record_id
from endwell.model.moments import SECOND
from endwell.model.task import ErrorInfo, Task, waits_of
from tests.proof.histories.bench import History, Stores

SESSIONS: Final = ("s1", "s2")
PEOPLE: Final = ("ada", "bob")
CONTENT: Final[dict[str, Any]] = {"content": b"1", "content_hash": "x"}
LEASE: Final = 120 * SECOND
doors = st.sampled_from([0, 1])
moments = st.sampled_from([1, 10, 40, 200, 4000])
errors = st.sampled_from(["exception", "bad_input", "bad_result"]).map(
    lambda code: ErrorInfo(code=code, retryable=code != "bad_input")
)
AGENTS: Final = ("coder", "limited")
_OF_HOLDER: Final = (c.Progress, c.HandBack, c.Finish, c.FailTurn, c.FailTurn, c.RecordStep, c.KeepDraft)
_FENCED: Final = (*_OF_HOLDER, c.IntendEffect, c.FinishEffect, c.DoubtEffect, c.Suspend)
_OF_PERSON: Final = (c.Cancel, c.RunNow, c.Abandon, c.Approve, c.Reject)
_WAITS: Final = ("tool", "timer", "signal", "approval")


class StoreHistories(RuleBasedStateMachine):
    """`stores` is set by a subclass for each database."""

    stores: ClassVar[Stores]
    finished: ClassVar[int] = 0

    @initialize()
    def begin(self) -> None:
        self.history = History(self.stores)
        self.starts: Counter[str] = Counter()
        self.give = self.history.give
        specs = (c.AgentSpec(name="coder"), c.AgentSpec(name="limited", concurrency=1))
        self.give([self._command(c.RegisterAgents, agents=specs), *map(self._opened, SESSIONS)])
        self.give([self._submit(), self._submit(agent_key="k"), self._submit(agent="limited")])
        self.a_worker_claims(through=0, session="s1", limit=3)

    def _command(self, command: type[c.Command], /, **fields: Any) -> Any:
        return command(**{**self.history.basics(), **fields})

    def _opened(self, session: str) -> Any:
        about = {"kind": "worker", "name": session, "host": "h", "pid": 1, "concurrency": 50}
        own = self._session(session)
        return self._command(c.OpenSession, session_id=own, agents=AGENTS, lease=LEASE, **about)

    def _session(self, name: str) -> str:
        """Return the id of a session, which is new at every start of a worker."""
        return f"{name}.{self.starts[name]}-{self.history.namespace}"

    def _submit(self, agent: str = "coder", body: str = "h", **options: Any) -> Any:
        about = {"task_id": self.history.new_id(), "agent": agent, "payload": b"{}", "payload_hash": body}
        return self._command(c.Submit, deadline=3600 * SECOND, **about, **options)

    def _running(self) -> list[Task]:
        return [task for _, task in sorted(self.history.tasks.items()) if task.attempt_id is not None]

    def _some(self, data: st.DataObject, tasks: list[Task]) -> Task:
        return data.draw(st.sampled_from(tasks), label="task")

    def _any(self, data: st.DataObject) -> Task:
        return self._some(data, [task for _, task in sorted(self.history.tasks.items())])

    @rule(
        through=doors,
        agent=st.sampled_from(AGENTS),
        key=st.sampled_from([None, "a", "a", "b"]),
        body=st.sampled_from(["h", "h", "other"]),
        agent_key=st.sampled_from([None, "k"]),
        delay=st.sampled_from([0, 0, 30]),
        approval=st.sampled_from([None, None, 60]),
    )
    def somebody_submits(
        self,
        through: int,
        agent: str,
        key: str | None,
        body: str,
        agent_key: str | None,
        delay: int,
        approval: int | None,
    ) -> None:
        within = None if approval is None else approval * SECOND
        about = {"key": key, "agent_key": agent_key, "delay": delay * SECOND, "approval_within": within}
        self.give([self._submit(agent, body, **about)], through)

    @rule(seconds=moments)
    def time_passes(self, seconds: int) -> None:
        self.history.advance(seconds)

    @rule(through=doors, session=st.sampled_from(SESSIONS), limit=st.integers(1, 3))
    def a_worker_claims(self, through: int, session: str, limit: int) -> None:
        own = self._session(session)
        beat = self._command(c.Heartbeat, session_id=own, lease=LEASE, attempts=self._named(own))
        claim = self._command(c.ClaimNext, session_id=own, agents=AGENTS, limit=limit, may_take_suspect=True)
        self.give([beat, claim], through)

    def _named(self, session: str) -> tuple[tuple[str, str], ...]:
        held = [task for task in self._running() if task.session_id == session]
        return tuple((task.id, task.attempt_id or "") for task in held)

    @rule(through=doors, agent=st.sampled_from(AGENTS))
    def a_supervisor_dispatches(self, through: int, agent: str) -> None:
        self.give([self._command(c.DispatchNext, agent=agent, limit=2)], through)

    @rule(session=st.sampled_from(SESSIONS))
    def a_worker_forgets_what_it_holds(self, session: str) -> None:
        self.give([self._command(c.Heartbeat, session_id=self._session(session), lease=LEASE)])

    @rule(session=st.sampled_from(SESSIONS), reason=st.sampled_from(["goodbye", "lease_lapsed"]))
    def a_session_ends_and_another_begins(self, session: str, reason: str) -> None:
        own = self._session(session)
        self.give([self._command(c.CloseSession, session_id=own, reason=reason)])
        self.starts[session] += 1
        self.give([self._opened(session)])

    @precondition(lambda self: self._running())
    @rule(data=st.data(), through=doors, kind=st.sampled_from(_OF_HOLDER))
    def a_holder_writes(self, data: st.DataObject, through: int, kind: Any) -> None:
        self._write(self._some(data, self._running()), kind, data, through)

    @precondition(lambda self: any(len(self.history.attempts.get(t, ())) > 1 for t in self.history.tasks))
    @rule(data=st.data(), through=doors, kind=st.sampled_from(_FENCED))
    def somebody_writes_who_lost_the_task(self, data: st.DataObject, through: int, kind: Any) -> None:
        known = [
            t for _, t in sorted(self.history.tasks.items()) if len(self.history.attempts.get(t.id, ())) > 1
        ]
        task = self._some(data, known)
        old = data.draw(st.sampled_from(self.history.attempts[task.id][:-1]), label="attempt")
        self._write(task, kind, data, through, attempt=old)

    def _write(
        self, task: Task, kind: Any, data: st.DataObject, through: int, attempt: str | None = None
    ) -> None:
        number = data.draw(st.integers(1, 2), label="number")
        effect = self._effect(number)
        fields: dict[Any, Callable[[], dict[str, Any]]] = {
            c.Finish: lambda: {"result": b"1", "result_hash": "x"},
            c.FailTurn: lambda: {"error": data.draw(errors, label="error")},
            c.RecordStep: lambda: {**CONTENT, "step": f"1:()step#{self.history.steps}"},
            c.KeepDraft: lambda: CONTENT,
            c.IntendEffect: lambda: {**effect, "args_hash": f"x{number}", "timeout": SECOND},
            c.FinishEffect: lambda: {**effect, **CONTENT},
            c.DoubtEffect: lambda: {"key": effect["key"], "reason": "why"},
            c.Suspend: lambda: {"calls": self._calls(task, data)},
        }
        about = {"task_id": task.id, "attempt_id": attempt or task.attempt_id}
        self.give([self._command(kind, **about, **fields.get(kind, dict)())], through)

    def _effect(self, number: int) -> dict[str, Any]:
        step = f"1:()pay{self.history.steps}#{number}"
        return {"key": f"pay:{number}:{self.history.namespace}", "step": step}

    @precondition(lambda self: self._running())
    @rule(
        data=st.data(), through=doors, then=st.sampled_from([c.FinishEffect, c.DoubtEffect, c.FailTurn, None])
    )
    def a_holder_has_an_effect(self, data: st.DataObject, through: int, then: Any) -> None:
        task = self._some(data, self._running())
        self._write(task, c.IntendEffect, data, through)
        if then is not None:
            self._write(self.history.tasks[task.id], then, data, through)

    @precondition(lambda self: self.history.allowed)
    @rule(data=st.data(), verdict=st.sampled_from(["done", "not_done", "abandon"]))
    def a_person_settles_an_effect(self, data: st.DataObject, verdict: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.history.allowed)), label="key")
        effect = self.history.ask(self.history.store.effect(self.history.namespace, key))
        self.give([self._command(c.SettleEffect, task_id=effect.task_id, key=key, verdict=verdict)])

    @precondition(lambda self: self._running())
    @rule(data=st.data(), through=doors)
    def a_turn_is_suspended(self, data: st.DataObject, through: int) -> None:
        self._write(self._some(data, self._running()), c.Suspend, data, through)

    def _calls(self, task: Task, data: st.DataObject) -> tuple[c.Call, ...]:
        kinds = data.draw(st.lists(st.sampled_from(_WAITS), min_size=1, max_size=3), label="waits")
        return tuple(self._call(task, place, kind, data) for place, kind in enumerate(kinds))

    def _call(self, task: Task, place: int, kind: Any, data: st.DataObject) -> c.Call:
        return c.Call(
            tool_call_id=record_id(task.id, f"1:(){kind}{self.history.steps}#{place}"),
            kind=kind,
            within=data.draw(st.sampled_from([5, 60]), label="within") * SECOND,
            name="go",
            content=b"1" if kind in ("tool", "approval") else None,
            content_hash="x",
        )

    @precondition(lambda self: self._running())
    @rule(data=st.data())
    def an_answer_comes_before_the_turn_waits_for_it(self, data: st.DataObject) -> None:
        task = self._some(data, self._running())
        call = self._call(task, 0, "tool", data)
        self.give([self._command(c.Answer, task_id=task.id, tool_call_id=call.tool_call_id, **CONTENT)])
        self.give([self._command(c.Suspend, task_id=task.id, attempt_id=task.attempt_id, calls=(call,))])
        assert self.history.tasks[task.id].status != "suspended", "the answer was there"

    @precondition(lambda self: any(task.waits for task in self.history.tasks.values()))
    @rule(
        data=st.data(),
        through=doors,
        how=st.sampled_from(["answer", "answer", "signal", "approve", "inject"]),
    )
    def something_arrives(self, data: st.DataObject, through: int, how: str) -> None:
        task = self._some(data, [t for _, t in sorted(self.history.tasks.items()) if t.waits])
        call = data.draw(st.sampled_from([wait.tool_call_id for wait in waits_of(task)]), label="call")
        who = data.draw(st.sampled_from(PEOPLE), label="who")
        command = {
            "answer": lambda: self._command(c.Answer, task_id=task.id, tool_call_id=call, **CONTENT),
            "signal": lambda: self._command(c.Signal, task_id=task.id, name="go", **CONTENT),
            "approve": lambda: self._command(c.Approve, task_id=task.id, approval_id=call, actor=who),
            "inject": lambda: self._command(c.InjectTimeout, task_id=task.id),
        }[how]()
        self.give([command], through)

    @rule(through=doors, seconds=st.sampled_from([0, 130, 400]))
    def a_supervisor_ticks(self, through: int, seconds: int) -> None:
        """Fire every clock that is due, and reclaim every turn whose lease has expired."""
        self.history.advance(seconds)
        store, namespace = self.history.store, self.history.namespace
        now = self.history.ask(store.now())
        due = self.history.ask(store.due(namespace, now, (-1, ""), 50))
        lapsed = self.history.ask(store.expired_claims(namespace, now, 50))
        clocks = [self._command(c.ClockFired, task_id=task_id) for task_id, _ in due]
        reclaims = [
            self._command(
                c.Reclaim, task_id=one.task_id, attempt_id=one.attempt_id, session_id=one.session_id
            )
            for one in lapsed
        ]
        if clocks or reclaims:
            self.give([*clocks, *reclaims], through)

    @precondition(lambda self: self._running())
    @rule(through=doors, session=st.sampled_from(SESSIONS))
    def a_worker_dies_and_another_takes_over(self, through: int, session: str) -> None:
        self.a_supervisor_ticks(through=through, seconds=130)
        self.starts[session] += 1
        self.give([self._opened(session)])
        self.a_worker_claims(through=1 - through, session=session, limit=3)

    @precondition(lambda self: self._running())
    @rule(data=st.data(), through=doors, reason=st.sampled_from(["lease_lapsed", "visibility_timeout"]))
    def a_supervisor_reclaims_what_it_saw_before(
        self, data: st.DataObject, through: int, reason: str
    ) -> None:
        """Reclaim by an old observation: it is refused if the attempt is older, or its lease holds."""
        running = self._running()
        task = self._some(data, [t for t in running if len(self.history.attempts[t.id]) > 1] or running)
        known = self.history.attempts[task.id]
        attempt = data.draw(st.sampled_from(known[:-1] or known), label="attempt")
        about = {"task_id": task.id, "attempt_id": attempt, "session_id": task.session_id, "reason": reason}
        (reply,) = self.give([self._command(c.Reclaim, **about)], through)
        assert attempt == task.attempt_id or reply.refusal is not None

    @rule(data=st.data(), through=doors, kind=st.sampled_from(_OF_PERSON))
    def a_person_acts(self, data: st.DataObject, through: int, kind: Any) -> None:
        self.give([self._command(kind, task_id=self._any(data).id)], through)

    @rule(data=st.data(), cooldown=st.sampled_from([None, 30]))
    def somebody_blocks(self, data: st.DataObject, cooldown: int | None) -> None:
        seconds = None if cooldown is None else cooldown * SECOND
        self.give([self._command(c.Block, task_id=self._any(data).id, reason="look", cooldown=seconds)])

    @precondition(lambda self: any(task.is_ended for task in self.history.tasks.values()))
    @rule(data=st.data(), through=doors)
    def a_person_tries_again(self, data: st.DataObject, through: int) -> None:
        ended = [task for _, task in sorted(self.history.tasks.items()) if task.is_ended]
        new = {"new_task_id": self.history.new_id(), "payload": b"{}", "payload_hash": "h"}
        self.give([self._command(c.Replay, task_id=self._some(data, ended).id, **new)], through)

    def teardown(self) -> None:
        if hasattr(self, "history"):
            self.history.to_the_end()
            type(self).finished += 1
