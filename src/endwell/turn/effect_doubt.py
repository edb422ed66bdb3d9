"""What can be known of one effect without executing it: its row, its calls in progress, its `reconcile`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from endwell.errors import StaleAttempt
from endwell.model import content
from endwell.model.effect import Effect
from endwell.policy import ledger
from endwell.policy.limits import SECOND
from endwell.policy.retry import RetryPolicy
from endwell.turn.endings import is_retryable
from endwell.turn.function_calls import FunctionCall, pause_before
from endwell.turn.recorder import Recorder
from endwell.turn.verdicts import CANNOT_TELL, NOT_DONE, Done, Verdict, verdict_of

log = logging.getLogger(__name__)

SLICE_SECONDS = 1.0
"""How long to sleep at most before it is looked again whether the turn is still ours."""


class EffectRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One effect as it was asked for."""

    step: str
    key: str
    args_hash: str
    work: FunctionCall
    reconcile: FunctionCall | None
    policy: RetryPolicy
    deduplicates: bool
    accept_risk: bool


class EffectInDoubt:
    """One effect of one turn, of which it is asked what became of it."""

    def __init__(self, bench: Recorder, order: EffectRequest) -> None:
        self._bench = bench
        self._order = order
        self._place = f"{bench.task.namespace}/{order.key}"
        self._may_repeat = order.deduplicates or order.accept_risk

    @property
    def _is_running(self) -> bool:
        """Whether a call of this effect is in progress in this process, of whichever attempt."""
        return self._bench.calls.is_running(self._place)

    def _lost(self, why: str) -> StaleAttempt:
        return StaleAttempt(f"effect {self._order.key!r}: {why}", task_id=self._bench.task.id)

    async def _found(self) -> bytes | None:
        effects = self._bench.effects
        if effects is None:
            return None
        found: bytes | None = await self._bench.asked(lambda: effects.get(self._place))
        return found

    async def _surely_over_at(self) -> int:
        """From when on the call is not in progress anywhere, unless its process is stuck."""
        effect = await self._row()
        return 0 if effect is None else ledger.surely_over_at(effect, self._bench.limits.effect_margin)

    async def _verdict(self) -> Verdict:
        """What can be known about it without executing it."""
        found = await self._found()
        if found is not None:
            return Done(content.decode_stored(found))
        if self._order.reconcile is None:
            return NOT_DONE if self._order.deduplicates else CANNOT_TELL
        return await self._reconciled(self._order.reconcile)

    async def _reconciled(self, reconcile: FunctionCall) -> Verdict:
        """What `reconcile` says. One that fails is asked again by the step's policy, or the settings' own."""
        bench, policy = self._bench, self._order.policy
        if policy.max_retries == 0:
            policy = bench.limits.retry
        for number in range(1, policy.max_retries + 2):
            await bench.expect(self._order.step, reconcile.seconds)
            try:
                verdict = verdict_of(await reconcile.run(bench.runtime, bench.threads))
                if isinstance(verdict, Done):
                    self._order.work.encoded(verdict.value)  # what cannot be kept says nothing
                return verdict
            except Exception as error:
                log.warning("reconcile of effect %r failed: %r", self._order.key, error)
                if not is_retryable(error, bench.give_up_on):
                    break
            if number <= policy.max_retries:
                await pause_before(bench, self._order.step, policy, number)
            if bench.hold.is_lost:
                raise self._lost("the task was taken away meanwhile")
        return CANNOT_TELL

    async def _wait(self, until: int, is_over: Callable[[], Awaitable[bool]]) -> None:
        """Wait until that moment, or until `is_over`."""
        bench = self._bench
        left = (until - await self._now()) / SECOND
        await bench.expect(self._order.step, max(left, 0))
        while left > 0 and not await is_over():
            await self._pause(left)
            left = (until - await self._now()) / SECOND

    async def _now(self) -> int:
        now: int = await self._bench.asked(self._bench.store.now)
        return now

    async def _pause(self, seconds: float) -> None:
        bench = self._bench
        if bench.hold.is_lost:
            raise self._lost("the task was taken away meanwhile")
        await bench.runtime.sleep(min(seconds, SLICE_SECONDS, bench.settings.poll_seconds))

    async def _is_said(self) -> bool:
        return not await self._is_intended()

    async def _is_intended(self) -> bool:
        """Whether whoever intends it has still not said how it ended."""
        effect = await self._row()
        return effect is not None and effect.status == "intended"

    async def _may_be_made(self) -> bool:
        """Whether the ledger may allow a call, at once or after `reconcile`."""
        effect = await self._row()
        return effect is None or effect.status in ("unknown", "not_done")

    async def _row(self) -> Effect | None:
        bench = self._bench
        effect: Effect | None = await bench.asked(
            lambda: bench.store.effect(bench.task.namespace, self._order.key)
        )
        return effect


async def is_holder_gone(bench: Recorder, key: str) -> bool:
    """Whether the session that began the effect said goodbye, or its process is gone from this machine.

    Of a worker that left processes behind it is not known when these end.
    """
    effect = await bench.asked(lambda: bench.store.effect(bench.task.namespace, key))
    session_id = effect.session_id if effect is not None else None
    if session_id is None:
        return False
    session = await bench.asked(lambda: bench.store.session(bench.task.namespace, session_id))
    if session is None:
        return False
    if session.end_reason in ("goodbye", "left_processes"):
        return session.end_reason == "goodbye"
    is_here = session.host == bench.runtime.host_name()
    return is_here and bench.runtime.is_same_process(session.pid, session.process) is False
