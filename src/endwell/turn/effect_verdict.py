"""Finds out what became of one effect without executing it: its row, its running calls, its `reconcile`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final

import msgspec

from endwell.errors import StaleAttempt
from endwell.model import content
from endwell.model.effect import Effect
from endwell.model.moments import SECOND
from endwell.policy import ledger
from endwell.policy.retry import RetryPolicy
from endwell.turn.endings import is_retryable
from endwell.turn.function_calls import FunctionCall, pause_before
from endwell.turn.recorder import Recorder

log = logging.getLogger(__name__)

RECHECK_SECONDS = 1.0
"""The longest sleep before a waiting turn checks again that it still holds its task."""


class Done(msgspec.Struct, frozen=True):
    """The effect took place, and this is its result."""

    value: Any = None


class Unsettled(Enum):
    """The effect did not take place, or that cannot be known."""

    NOT_DONE = "not_done"
    CANNOT_TELL = "cannot_tell"


NOT_DONE: Final = Unsettled.NOT_DONE
CANNOT_TELL: Final = Unsettled.CANNOT_TELL
Verdict = Done | Unsettled


class EffectRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One effect as the agent asked for it."""

    step: str
    key: str
    args_hash: str
    call: FunctionCall
    reconcile: FunctionCall | None
    policy: RetryPolicy
    deduplicates: bool
    accept_risk: bool

    @property
    def may_repeat(self) -> bool:
        """Whether a second call does no harm."""
        return self.deduplicates or self.accept_risk


class EffectInquiry:
    """Asks about one effect of one turn."""

    def __init__(self, recorder: Recorder, request: EffectRequest) -> None:
        self._recorder = recorder
        self._request = request
        self.place = f"{recorder.task.namespace}/{request.key}"
        """The effect's key in the effect store and among the running calls."""

    @property
    def is_running(self) -> bool:
        """Whether a call of this effect is in progress in this process, of any attempt."""
        return self._recorder.calls.is_running(self.place)

    async def now(self) -> int:
        return await self._recorder.ask_store(self._recorder.store.now)

    async def row(self) -> Effect | None:
        store, namespace = self._recorder.store, self._recorder.task.namespace
        return await self._recorder.ask_store(lambda: store.effect(namespace, self._request.key))

    async def is_intended(self) -> bool:
        """Whether the attempt that intends the effect has not yet said how it ended."""
        effect = await self.row()
        return effect is not None and effect.status == "intended"

    async def may_be_called(self) -> bool:
        """Whether the ledger may allow a call, at once or after `reconcile`."""
        effect = await self.row()
        return effect is None or effect.status in ("unknown", "not_done")

    async def stored_result(self) -> bytes | None:
        """The result in the app's own effect store, if it has one."""
        effects = self._recorder.effects
        if effects is None:
            return None
        return await self._recorder.ask_store(lambda: effects.get(self.place))

    async def is_holder_gone(self) -> bool:
        """Whether the worker that began the effect is known to be gone."""
        return await is_holder_gone(self._recorder, self._request.key)

    async def ask_verdict(self) -> Verdict:
        """What can be known now."""
        found = await self.stored_result()
        if found is not None:
            return Done(content.decode_stored(found))
        if self._request.reconcile is None:
            return NOT_DONE if self._request.deduplicates else CANNOT_TELL
        return await self._ask_reconcile(self._request.reconcile)

    async def verdict_when_over(self, *, call_ended: bool) -> Verdict:
        """What can be known. "Not done" is asked for again when the call's time and the margin are over.

        It counts only if no call was in progress when it was asked for: the call may have ended since.
        """
        until, asked_at, was_running = await self._surely_over_at(), await self.now(), self.is_running
        verdict = await self.ask_verdict()
        may_count = asked_at >= until or call_ended or self._request.may_repeat
        if verdict is not NOT_DONE or (may_count and not was_running):
            return verdict

        async def is_over() -> bool:
            return call_ended and not self.is_running

        await self.wait_until(max(until, await self.now() + self._recorder.limits.effect_margin), is_over)
        was_running = self.is_running
        verdict = await self.ask_verdict()
        return CANNOT_TELL if verdict is NOT_DONE and was_running else verdict

    async def _surely_over_at(self) -> int:
        """When the effect's time and the margin are over: then no call of it is in progress anywhere."""
        effect = await self.row()
        return 0 if effect is None else ledger.surely_over_at(effect, self._recorder.limits.effect_margin)

    async def _ask_reconcile(self, reconcile: FunctionCall) -> Verdict:
        """What `reconcile` answers; a failure is retried by the step's policy, or the settings' own."""
        recorder, policy = self._recorder, self._request.policy
        if policy.max_retries == 0:
            policy = recorder.limits.retry
        for number in range(1, policy.max_retries + 2):
            await recorder.announce_step(self._request.step, reconcile.seconds)
            try:
                verdict = _verdict_of(await reconcile.run(recorder.runtime, recorder.threads))
                if isinstance(verdict, Done):
                    self._request.call.encode_result(
                        verdict.value
                    )  # a result that cannot be kept is no answer
                return verdict
            except Exception as error:
                log.warning("reconcile of effect %r failed: %r", self._request.key, error)
                if not is_retryable(error, recorder.give_up_on):
                    break
            if number <= policy.max_retries:
                await pause_before(recorder, self._request.step, policy, number)
            self._refuse_lost()
        return CANNOT_TELL

    async def wait_until(self, until: int, is_over: Callable[[], Awaitable[bool]]) -> None:
        """Wait until that moment, or until `is_over`."""
        left = (until - await self.now()) / SECOND
        await self._recorder.announce_step(self._request.step, max(left, 0))
        while left > 0 and not await is_over():
            await self.pause(left)
            left = (until - await self.now()) / SECOND

    async def pause(self, seconds: float) -> None:
        self._refuse_lost()
        recorder = self._recorder
        await recorder.runtime.sleep(min(seconds, RECHECK_SECONDS, recorder.settings.poll_seconds))

    def _refuse_lost(self) -> None:
        if self._recorder.hold.is_lost:
            raise self.lost_error("another attempt took the task")

    def lost_error(self, why: str) -> StaleAttempt:
        """The error of a turn that may not continue with its effect."""
        return StaleAttempt(f"effect {self._request.key!r}: {why}", task_id=self._recorder.task.id)


def _verdict_of(answer: Any) -> Verdict:
    """A plain value means that the effect was done, `None` that it was not."""
    if isinstance(answer, Done | Unsettled):
        return answer
    return NOT_DONE if answer is None else Done(answer)


async def is_holder_gone(recorder: Recorder, key: str) -> bool:
    """Whether the session that began the effect was closed cleanly, or its process on this host is gone.

    A worker that left child processes behind is not known to be gone: these may still carry the effect out.
    """
    store, namespace = recorder.store, recorder.task.namespace
    effect = await recorder.ask_store(lambda: store.effect(namespace, key))
    session_id = effect.session_id if effect is not None else None
    if session_id is None:
        return False
    session = await recorder.ask_store(lambda: store.session(namespace, session_id))
    if session is None:
        return False
    if session.end_reason in ("goodbye", "left_processes"):
        return session.end_reason == "goodbye"
    is_here = session.host == recorder.runtime.host_name()
    return is_here and recorder.runtime.is_same_process(session.pid, session.process) is False
