"""Verbs that wait: for a tool, another agent, a person, time or a signal.

Each looks for its record first. Without one it raises `Suspended`, which unwinds the agent's function: the
turn frees its worker's slot, and the function runs again from the top once the answer is there.
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
from endwell.model.moments import SECOND
from endwell.model.typed import Shape
from endwell.model.wait import WaitKind
from endwell.policy.approval import AgentOptions, Guard, checked_names, checked_quorum, options_of
from endwell.policy.submitting import ChildCall, Seconds, child_order, microseconds, unknown_agent
from endwell.turn import wait_results
from endwell.turn.recorder import Recorder
from endwell.turn.suspension import Suspended
from endwell.turn.wait_results import Approved

SHORTEST_SECONDS: Final = 0.001
SHARE_OF_TIME_LEFT: Final = 0.9
"""An approval without `within` leaves the task some time to act on the decision."""
_HASH_SHOWN: Final = 16


class WaitVerbs:
    """The part of a context that suspends."""

    _recorder: Recorder

    async def tool(
        self,
        tool_name: str,
        arguments: Any = None,
        *,
        name: str | None = None,
        timeout: Seconds | None = None,
        result: Any = None,
    ) -> Any:
        """Have a tool executed elsewhere and return its answer, as the type `result`.

        A worker that has it as `@app.tool` executes it, or a program outside answers the call:
        `endwell tool answer`, `app.answer`.
        """
        names.tool_name(tool_name)
        recorder, repeats = self._recorder, self._recorder.repeat_guard
        with recorder.ids.step(name or tool_name) as step:
            try:
                identity, card = await recorder.answer_to(step)
                await recorder.report_repeat(repeats.on_call(tool_name, arguments, is_new=card is None))
                if card is not None:
                    shape = self._shape(tool_name, result)
                    return await wait_results.tool_result(recorder, tool_name, card, shape)
                wait = await self._tool_call(identity, tool_name, arguments, timeout)
                raise recorder.admit_wait(step, wait)
            except (ToolFailed, ToolTimeout) as error:
                await recorder.report_repeat(repeats.on_exception(tool_name, error))
                raise

    async def _tool_call(
        self, step: str, tool_name: str, arguments: Any, timeout: Seconds | None
    ) -> Suspended:
        spec = await self._find_spec(tool_name)
        options = options_of(spec.options) if spec else AgentOptions()
        asked = microseconds(timeout, "timeout", least=SHORTEST_SECONDS)
        within = self._tool_timeout(options, asked)
        left = within if spec is None else await self._time_left()
        asking = content.encode({"tool_name": tool_name, "arguments": arguments}, what="arguments")
        call = self._new_call(step, "tool", within, name=tool_name, asking=asking)
        if spec is None:
            return Suspended((call,))
        if spec.kind != "tool":
            raise _wrong_verb(tool_name, "an agent", "call")
        return self._with_child(call, spec, None, arguments, left)

    def _tool_timeout(self, options: AgentOptions, asked: int | None) -> int:
        """The longest timeout of settings, tool and caller; the machine cuts it at the task's deadline."""
        timeouts = (
            self._recorder.settings.suspend_timeout_seconds,
            options.suspend_timeout_seconds or 0.0,
            options.timeout_seconds or 0.0,
        )
        return max(int(max(timeouts) * SECOND), asked or 0)

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
        if on_parent_end not in ("cancel", "leave"):
            raise BadInput(
                'on_parent_end must be "cancel" or "leave"', code="bad_policy", field="on_parent_end"
            )
        recorder, repeats = self._recorder, self._recorder.repeat_guard
        with recorder.ids.step(name or agent) as step:
            try:
                identity, card = await recorder.answer_to(step)
                await recorder.report_repeat(repeats.on_call(agent, payload, is_new=card is None))
                if card is not None:
                    shape = self._shape(agent_name, result)
                    return await wait_results.call_result(recorder, agent, card, shape)
                spec = await self._known_agent(agent_name)
                left = await self._time_left()
                call = self._new_call(identity, "call", _timeout_within(timeout, left), name=agent)
                wait = self._with_child(call, spec, agent_key, payload, left, on_parent_end)
                raise recorder.admit_wait(step, wait)
            except CallFailed as error:
                await recorder.report_repeat(repeats.on_exception(agent, error))
                raise

    def _with_child(
        self,
        call: Call,
        spec: AgentSpec,
        agent_key: str | None,
        payload: Any,
        left: int,
        on_parent_end: OnParentEnd = "cancel",
    ) -> Suspended:
        """The call and the task that answers it; its time includes that of an approval, if it needs one."""
        guard = self._recorder.directory.approval_guard(spec)
        within = min(call.within + approval_time(guard), left)
        order = ChildCall(
            tool_call_id=call.tool_call_id,
            agent_key=agent_key,
            within=left if on_parent_end == "leave" else within,
            on_parent_end=on_parent_end,
        )
        submit = child_order(self._recorder.task, order, spec, payload, guard)
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

        The decision is bound to `question` and `show`: when the function comes here again with others, it is
        asked for again. `by` names who may decide, `quorum` how many must agree; nothing proves that a person
        has the name that they give.
        Raises `ApprovalRejected`, or `ApprovalExpired` when there was no decision in time.
        """
        allowed = checked_names(by)
        asking = content.encode({"question": question, "shown": show}, what="show")
        digest = content.fingerprint(asking)
        recorder = self._recorder
        with recorder.ids.step(f"{name}@{digest[:_HASH_SHOWN]}") as step:
            recorder.repeat_guard.on_wait()
            identity, card = await recorder.answer_to(step)
            if card is not None:
                return wait_results.approval_result(question, card, digest)
            timeout = await self._approval_timeout(within)
            title = question_title(question)
            call = self._new_call(identity, "approval", timeout, name=title, asking=asking)
            asked = replace(call, by=allowed, quorum=checked_quorum(quorum, allowed))
            raise recorder.admit_wait(step, Suspended((asked,)))

    async def _approval_timeout(self, within: Seconds | None) -> int:
        asked = microseconds(within, "within", least=SHORTEST_SECONDS)
        if asked is not None:
            await self._refuse_beyond_deadline(asked, "approval")
            return asked
        usual = int(self._recorder.directory.approval.within_seconds * SECOND)
        return min(usual, int(await self._time_left() * SHARE_OF_TIME_LEFT))

    async def sleep(self, duration: Seconds, *, name: str = "sleep") -> None:
        """Let time pass, seconds or days, without holding a worker."""
        recorder = self._recorder
        with recorder.ids.step(name) as step:
            recorder.repeat_guard.on_wait()
            if await recorder.record_of(step) is not None:
                return
            within = microseconds(duration, "duration", least=0.0) or 0
            await self._refuse_beyond_deadline(within, "sleep")
            call = self._new_call(step, "timer", within, name=name)
            raise recorder.admit_wait(step, Suspended((call,)))

    async def wait_signal(
        self, signal: str, *, within: Seconds | None = None, result: Any = None, name: str | None = None
    ) -> Any:
        """Wait for a signal of that name to this task (`endwell signal`, `app.signal`).

        It has until `within`, or as long as the task has; then `SignalTimeout` is raised. A signal that
        came before is found here.
        """
        names.signal_name(signal)
        recorder = self._recorder
        with recorder.ids.step(name or signal) as step:
            recorder.repeat_guard.on_wait()
            identity, card = await recorder.answer_to(step)
            if card is not None:
                return await wait_results.signal_result(recorder, signal, card, _shape_of(result))
            timeout = _timeout_within(within, await self._time_left())
            call = self._new_call(identity, "signal", timeout, name=signal)
            raise recorder.admit_wait(step, Suspended((call,)))

    def _new_call(
        self, step: str, kind: WaitKind, within: int, *, name: str, asking: bytes | None = None
    ) -> Call:
        return Call(
            tool_call_id=record_id(self._recorder.task.id, step),
            kind=kind,
            within=within,
            name=name,
            content=asking,
            content_hash="" if asking is None else content.fingerprint(asking),
        )

    async def _time_left(self) -> int:
        """Microseconds until the task's deadline, at least none."""
        return max(self._recorder.task.ends_by - await self._recorder.ask_store(self._recorder.store.now), 0)

    async def _refuse_beyond_deadline(self, within: int, what: str) -> None:
        if within > await self._time_left():
            raise BadInput(
                f"this {what} cannot end before the task must",
                code="beyond_deadline",
                hint="submit the task with a longer deadline=, or wait for less time",
                field="deadline",
                task_id=self._recorder.task.id,
            )

    async def _find_spec(self, name: str) -> AgentSpec | None:
        return await self._recorder.ask_store(lambda: self._recorder.directory.spec_of(name))

    async def _known_agent(self, name: str) -> AgentSpec:
        spec = await self._find_spec(name)
        if spec is None:
            raise unknown_agent(name, await self._recorder.ask_store(self._recorder.directory.agent_names))
        if spec.kind == "tool":
            raise _wrong_verb(name, "a tool", "tool")
        return spec

    def _shape(self, name: str, result: Any) -> Shape:
        """The type that the caller names, else the agent's own where this process has the agent."""
        local = self._recorder.directory.local_agent(name) if result is None else None
        return local.result if local is not None else _shape_of(result)


def _shape_of(result: Any) -> Shape:
    return Shape.of(Any if result is None else result)


def _timeout_within(timeout: Seconds | None, left: int) -> int:
    """As long as the task has left, unless the caller says less."""
    asked = microseconds(timeout, "timeout", least=SHORTEST_SECONDS)
    return left if asked is None else min(asked, left)


def approval_time(guard: Guard | None) -> int:
    """Microseconds that people have to agree before a call starts."""
    return 0 if guard is None else int((guard.within_seconds or 0) * SECOND)


def question_title(question: object) -> str:
    """The question as lists show it."""
    if not isinstance(question, str) or not question.strip():
        raise BadInput("the question must be text", code="bad_question", field="question")
    return content.clean_text(question, 500)


def _wrong_verb(name: str, what: str, verb: str) -> BadInput:
    return BadInput(f"{name} is {what}", code="bad_name", hint=f"ask it with ctx.{verb}(…)", field="name")
