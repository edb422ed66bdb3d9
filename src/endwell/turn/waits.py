"""Verbs that wait: a tool, another agent, a person, time, a signal. One mechanism for all of them.

Each looks for its record first. Without one it unwinds the agent's function (`Suspended`): the turn lets
go of its worker, and the function runs again from the top once the answer is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from endwell.errors import BadInput, CallFailed, ToolFailed, ToolTimeout
from endwell.model import content, names
from endwell.model.card import record_id
from endwell.model.commands import AgentSpec, Call
from endwell.model.inside import OnParentEnd
from endwell.model.typed import Shape
from endwell.model.wait import WaitKind
from endwell.policy.approval import AgentOptions, Guard, checked_names, checked_quorum, options_of
from endwell.policy.limits import SECOND
from endwell.policy.submitting import ChildCall, Seconds, child_order, microseconds, unknown_agent
from endwell.turn import wait_results
from endwell.turn.recorder import BRANCH, Recorder
from endwell.turn.repeat_guard import RepeatGuard
from endwell.turn.suspension import Suspended
from endwell.turn.wait_results import Approved

SHORTEST_SECONDS: Final = 0.001
SHARE_OF_WHAT_IS_LEFT: Final = 0.9
"""An approval that names no time leaves the task some of its own to act on the decision."""
_HASH_SHOWN: Final = 16


class WaitVerbs:
    """The part of a context that suspends."""

    _bench: Recorder

    async def tool(
        self,
        tool_name: str,
        arguments: Any = None,
        *,
        name: str | None = None,
        timeout: Seconds | None = None,
        result: Any = None,
    ) -> Any:
        """Have a tool executed elsewhere and return what it answers; `result` says of which type.

        By a worker that has it as `@app.tool`, or from outside: `endwell tool answer`, `app.answer`.
        """
        names.tool_name(tool_name)
        step = self._bench.begin(name or tool_name)
        try:
            call, card = await self._bench.answered(step)
            await self._circles.called(BRANCH.get(), tool_name, arguments, is_new=card is None)
            if card is not None:
                shape = self._shape(tool_name, result)
                record = wait_results.record_of(card)
                return await wait_results.tool_value(self._bench, tool_name, record, shape)
            raise self._bench.wait(step, await self._tool_call(call, tool_name, arguments, timeout))
        except (ToolFailed, ToolTimeout) as error:
            await self._circles.failed(BRANCH.get(), tool_name, error)
            raise
        finally:
            self._bench.end(step)

    @property
    def _circles(self) -> RepeatGuard:
        return self._bench.circles

    async def _tool_call(
        self, step: str, tool_name: str, arguments: Any, timeout: Seconds | None
    ) -> Suspended:
        spec = await self._spec(tool_name)
        options = options_of(spec.options) if spec else AgentOptions()
        asked = microseconds(timeout, "timeout", least=SHORTEST_SECONDS)
        within = self._tool_patience(options, asked)
        left = within if spec is None else await self._left()
        asking = content.encode({"tool_name": tool_name, "arguments": arguments}, what="arguments")
        call = self._call(step, "tool", within, name=tool_name, asking=asking)
        if spec is None:
            return Suspended((call,))
        if spec.kind != "tool":
            raise _not_what(tool_name, "an agent", "call")
        return self._with_child(call, spec, None, arguments, left)

    def _tool_patience(self, options: AgentOptions, asked: int | None) -> int:
        """The longest of what settings, tool and caller say; the machine cuts it where the task must end."""
        said = (
            self._bench.settings.suspend_timeout_seconds,
            options.suspend_timeout_seconds or 0.0,
            options.timeout_seconds or 0.0,
        )
        return max(int(max(said) * SECOND), asked or 0)

    async def call(
        self,
        agent: str,
        payload: Any = None,
        *,
        name: str | None = None,
        timeout: Seconds | None = None,
        on_parent_end: OnParentEnd = "cancel",
        result: Any = None,
    ) -> Any:
        """Have another agent (`name` or `name/key`) carry out a task and return its result.

        Raises `CallFailed` when that task ends in any other way. It has until `timeout`, or as long as this
        task has. When this task ends first the other is cancelled, or left to its owner (`"leave"`).
        """
        agent_name, agent_key = names.agent_reference(agent)
        _check_policy(on_parent_end)
        step = self._bench.begin(name or agent)
        try:
            known_as, card = await self._bench.answered(step)
            await self._circles.called(BRANCH.get(), agent, payload, is_new=card is None)
            if card is not None:
                shape = self._shape(agent_name, result)
                return await wait_results.call_value(
                    self._bench, agent, card.id, wait_results.record_of(card), shape
                )
            spec = await self._known(agent_name)
            left = await self._left()
            call = self._call(known_as, "call", _call_patience(timeout, left), name=agent)
            asked = self._with_child(call, spec, agent_key, payload, left, on_parent_end)
            raise self._bench.wait(step, asked)
        except CallFailed as error:
            await self._circles.failed(BRANCH.get(), agent, error)
            raise
        finally:
            self._bench.end(step)

    def _with_child(
        self,
        call: Call,
        spec: AgentSpec,
        agent_key: str | None,
        payload: Any,
        left: int,
        on_parent_end: OnParentEnd = "cancel",
    ) -> Suspended:
        """The call and the task that answers it. Where a person must agree first, both wait for that too."""
        guard = self._bench.directory.guard(spec)
        within = min(call.within + _deciding(guard), left)
        order = ChildCall(
            tool_call_id=call.tool_call_id,
            agent_key=agent_key,
            within=left if on_parent_end == "leave" else within,
            on_parent_end=on_parent_end,
        )
        submit = child_order(self._bench.task, order, spec, payload, guard)
        return Suspended((replace(call, within=within, is_child=True),), (submit,))

    async def approve(
        self,
        question: str,
        *,
        show: Any = None,
        within: Seconds | None = None,
        by: Sequence[str] | str = (),
        quorum: int = 1,
        name: str = "approve",
    ) -> Approved:
        """Ask people to agree to what they are shown, and return who did.

        Bound to exactly that: when the function comes here again with another question or something else
        to show, nobody has agreed to it yet. `by` names who may decide, `quorum` how many must agree; nothing
        proves that whoever decides has the name that they give.
        Raises `ApprovalRejected`, or `ApprovalExpired` when nobody decided in time.
        """
        who = checked_names(by)
        asking = content.encode({"question": question, "shown": show}, what="show")
        digest = content.fingerprint(asking)
        step = self._bench.begin(f"{name}@{digest[:_HASH_SHOWN]}")
        try:
            self._circles.waited()
            known_as, card = await self._bench.answered(step)
            if card is not None:
                return wait_results.approval_value(question, card, wait_results.record_of(card), digest)
            patience = await self._approval_patience(within)
            call = self._call(known_as, "approval", patience, name=asked_question(question), asking=asking)
            asked = replace(call, by=who, quorum=checked_quorum(quorum, who))
            raise self._bench.wait(step, Suspended((asked,)))
        finally:
            self._bench.end(step)

    async def _approval_patience(self, within: Seconds | None) -> int:
        asked = microseconds(within, "within", least=SHORTEST_SECONDS)
        if asked is not None:
            await self._refuse_beyond_deadline(asked, "approval")
            return asked
        usual = int(self._bench.directory.approval.within_seconds * SECOND)
        return min(usual, int(await self._left() * SHARE_OF_WHAT_IS_LEFT))

    async def sleep(self, duration: Seconds, *, name: str = "sleep") -> None:
        """Let time pass, seconds or days, without holding a worker meanwhile."""
        step = self._bench.begin(name)
        try:
            self._circles.waited()
            if await self._bench.recorded(step) is not None:
                return
            within = microseconds(duration, "duration", least=0.0) or 0
            await self._refuse_beyond_deadline(within, "sleep")
            raise self._bench.wait(step, Suspended((self._call(step, "timer", within, name=name),)))
        finally:
            self._bench.end(step)

    async def wait_signal(
        self, signal: str, *, within: Seconds | None = None, result: Any = None, name: str | None = None
    ) -> Any:
        """Wait until somebody tells this task something by that name (`endwell signal`, `app.signal`).

        It has until `within`, or as long as the task has; then `SignalTimeout` is raised. A signal that
        came before is found here.
        """
        names.signal_name(signal)
        step = self._bench.begin(name or signal)
        try:
            self._circles.waited()
            known_as, card = await self._bench.answered(step)
            if card is not None:
                record = wait_results.record_of(card)
                return await wait_results.signal_value(self._bench, signal, record, _shape_of(result))
            patience = _call_patience(within, await self._left())
            call = self._call(known_as, "signal", patience, name=signal)
            raise self._bench.wait(step, Suspended((call,)))
        finally:
            self._bench.end(step)

    def _call(
        self, step: str, kind: WaitKind, within: int, *, name: str, asking: bytes | None = None
    ) -> Call:
        return Call(
            tool_call_id=record_id(self._bench.task.id, step),
            kind=kind,
            within=within,
            name=name,
            content=asking,
            content_hash="" if asking is None else content.fingerprint(asking),
        )

    async def _left(self) -> int:
        """How long the task has, at least no time."""
        return max(self._bench.task.ends_by - await self._bench.asked(self._bench.store.now), 0)

    async def _refuse_beyond_deadline(self, within: int, what: str) -> None:
        if within > await self._left():
            raise BadInput(
                f"this {what} cannot end before the task must",
                code="beyond_deadline",
                hint="submit the task with a longer deadline=, or wait for less time",
                field="deadline",
                task_id=self._bench.task.id,
            )

    async def _spec(self, name: str) -> AgentSpec | None:
        found: AgentSpec | None = await self._bench.asked(lambda: self._bench.directory.spec(name))
        return found

    async def _known(self, name: str) -> AgentSpec:
        spec = await self._spec(name)
        if spec is None:
            raise unknown_agent(name, await self._bench.asked(self._bench.directory.names))
        if spec.kind == "tool":
            raise _not_what(name, "a tool", "tool")
        return spec

    def _shape(self, name: str, result: Any) -> Shape:
        """What the caller says, else what the agent promises where this process has it."""
        local = self._bench.directory.local(name) if result is None else None
        return local.result if local is not None else _shape_of(result)


def _shape_of(result: Any) -> Shape:
    return Shape.of(Any if result is None else result)


def _call_patience(timeout: Seconds | None, left: int) -> int:
    """As long as the task has left, unless the caller says less."""
    asked = microseconds(timeout, "timeout", least=SHORTEST_SECONDS)
    return left if asked is None else min(asked, left)


def _deciding(guard: Guard | None) -> int:
    return 0 if guard is None else int((guard.within_seconds or 0) * SECOND)


def asked_question(question: object) -> str:
    """The question as people are shown it."""
    if not isinstance(question, str) or not question.strip():
        raise BadInput("the question must be text", code="bad_question", field="question")
    return content.clean_text(question, 500)


def _check_policy(on_parent_end: object) -> None:
    if on_parent_end not in ("cancel", "leave"):
        raise BadInput('on_parent_end must be "cancel" or "leave"', code="bad_policy", field="on_parent_end")


def _not_what(name: str, what: str, verb: str) -> BadInput:
    return BadInput(f"{name} is {what}", code="bad_name", hint=f"ask it with ctx.{verb}(…)", field="name")
