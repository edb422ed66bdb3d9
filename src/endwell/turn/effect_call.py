"""Carries out one effect: intent first, then the call under a lease that covers it, then the record.

If it cannot be known whether the outside world was changed, the effect is unknown. Then the app's effect
store is asked, then `reconcile`, then a person; it is never simply tried again.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import msgspec

from endwell.errors import (
    EffectRejected,
    EndwellError,
    NotDone,
    Retry,
    StaleAttempt,
    StepTimeout,
    StoreError,
    TurnError,
    UsageError,
)
from endwell.machine.holds import EFFECT_UNKNOWN
from endwell.model import commands as c
from endwell.model import content
from endwell.model.effect import Verdict as Settlement
from endwell.model.moments import SECOND
from endwell.policy import ledger
from endwell.runtime.followed_work import follow_work
from endwell.runtime.running_calls import CURRENT_CALL
from endwell.turn.effect_verdict import NOT_DONE, RECHECK_SECONDS, Done, EffectInquiry, EffectRequest
from endwell.turn.endings import is_retryable
from endwell.turn.function_calls import CheckedValue, has_ended_by_itself, pause_before, replay_record
from endwell.turn.recorder import PAUSE_SECONDS, Recorder
from endwell.turn.suspension import HandedOver

REASON_LIMIT = 300
EFFECT_KEY: ContextVar[str] = ContextVar("endwell_effect_key", default="")


def effect_key() -> str:
    """Inside an effect's function: the key under which the effect happens at most once."""
    key = EFFECT_KEY.get()
    if not key:
        raise UsageError("effect_key() has an answer only inside the function of ctx.effect(...)")
    return key


class EffectResult(msgspec.Struct, frozen=True):
    """What the effect came to; without one, the ledger is asked again."""

    value: Any


class NotBegun(Exception):
    """The effect's function was not called: the lease does not cover it, or another call is in progress."""


class EffectCall:
    """One effect of one turn that has no record yet."""

    def __init__(self, recorder: Recorder, request: EffectRequest) -> None:
        self._recorder = recorder
        self._request = request
        self._inquiry = EffectInquiry(recorder, request)
        self._failures = 0
        self._has_looked_early = False

    async def run(self) -> Any:
        """Ask the ledger, and do what it says, until there is a result."""
        while True:
            result = await self._run_once()
            if result is not None:
                return result.value

    async def _run_once(self) -> EffectResult | None:
        await self._wait_until_covered()
        await self._refuse_beside_another()
        sent = self._recorder.runtime.clock.monotonic()
        reply = await self._recorder.commit(self._intent_command())
        match reply.ledger:
            case ledger.AllowExecute():
                return await self._carry_out(sent)
            case ledger.ReturnRecordedResult(card=card):
                record = await self._recorder.card(card)
                return EffectResult(await replay_record(self._recorder, self._request.call, record))
            case ledger.WaitOtherWorker(until=until):
                await self._wait_for_other_worker(until)
            case ledger.Rejected(code="effect_unknown"):
                await self._settle_unknown()
            case ledger.Rejected(code=code, message=message):
                raise EffectRejected(message, code=code, task_id=self._recorder.task.id)
        return None

    async def _wait_until_covered(self) -> None:
        """Wait for the heartbeat that renews the lease; without one this turn has lost its task."""
        hold = self._recorder.hold
        await hold.refresh()
        while not hold.lasts_for(self._needed_lease_seconds):
            if not hold.lasts_for(0):
                raise self._inquiry.lost_error("the lease does not cover the effect any more")
            await self._recorder.runtime.sleep(PAUSE_SECONDS / 4)
            await hold.refresh()

    @property
    def _needed_lease_seconds(self) -> float:
        return min(self._request.call.seconds, self._recorder.settings.lease_seconds / 2)

    async def _refuse_beside_another(self) -> None:
        """Wait for a call that an earlier attempt left running here; never make another beside it."""
        left = self._request.call.seconds
        while self._inquiry.is_running and await self._inquiry.may_be_called():
            if left <= 0:
                why = f"a call of the effect {self._request.key!r} is still running in this process"
                raise TurnError(why, code="effect_in_flight", hint="the task tries again later")
            await self._inquiry.pause(left)
            left -= RECHECK_SECONDS

    def _intent_command(self) -> c.IntendEffect:
        request = self._request
        return self._recorder.command(
            c.IntendEffect,
            step=request.step,
            key=request.key,
            args_hash=request.args_hash,
            timeout=int(request.call.seconds * SECOND),
        )

    # The ledger allows this attempt to execute

    async def _carry_out(self, sent: float) -> EffectResult | None:
        stored = await self._inquiry.stored_result()
        if stored is not None:  # it took place before the log could say so
            return await self._finish(stored, 0)
        clock = self._recorder.runtime.clock
        began = clock.monotonic()
        try:
            encoded = await self._execute(sent, began)
        except NotBegun:
            await self._withdraw_intent()
        except StaleAttempt:
            raise
        except Exception as error:
            await self._on_failure(error)
        except BaseException as error:
            await self._mark_unknown(error)
            raise
        else:
            return await self._finish(encoded, int((clock.monotonic() - began) * SECOND))
        return None

    async def _execute(self, sent: float, began: float) -> bytes:
        """Call the function and put its result in the effect store; only then is it recorded in the log."""
        recorder, request = self._recorder, self._request

        def check() -> None:
            if not self._may_start(sent):
                raise NotBegun

        follow_work(asyncio.get_running_loop())
        since = recorder.runtime.clock.now_us()
        call = recorder.calls.begin(self._inquiry.place, recorder.attempt_id, request.step, since)
        if call is None:
            raise NotBegun
        recorder.doing[request.step] = since
        tokens = EFFECT_KEY.set(request.key), CURRENT_CALL.set(call)
        try:
            value = await request.call.run(recorder.runtime, recorder.threads, before=check)
        finally:
            call.has_returned = True
            EFFECT_KEY.reset(tokens[0])
            CURRENT_CALL.reset(tokens[1])
            del recorder.doing[request.step]
        encoded = request.call.encode_result(value)
        await self._store_result(encoded, began)
        return encoded

    def _may_start(self, sent: float) -> bool:
        """Only while the lease covers it by our own clock, and the intent still keeps others away."""
        recorder, seconds = self._recorder, self._request.call.seconds
        is_early = recorder.runtime.clock.monotonic() - sent < seconds / 2
        return recorder.hold.lasts_for(self._needed_lease_seconds) and is_early

    async def _store_result(self, encoded: bytes, began: float) -> None:
        """Put the result in the effect store; while that is away, try again for the effect's time."""
        recorder = self._recorder
        while recorder.effects is not None:
            await recorder.hold.refresh()
            if not recorder.hold.lasts_for(0):
                raise self._inquiry.lost_error("the lease ran out before its result was put away")
            try:
                await recorder.effects.put(self._inquiry.place, encoded, recorder.attempt_id)
                return
            except StoreError:
                if recorder.runtime.clock.monotonic() - began > self._request.call.seconds:
                    raise
                await recorder.runtime.sleep(PAUSE_SECONDS)

    async def _finish(self, encoded: bytes, took: int) -> EffectResult:
        request = self._request
        kept = msgspec.json.encode(CheckedValue(request.args_hash, msgspec.Raw(encoded)))
        await self._recorder.commit(
            self._recorder.command(
                c.FinishEffect,
                step=request.step,
                key=request.key,
                content=kept,
                content_hash=content.fingerprint(kept),
                took=took,
                is_checked=True,
            )
        )
        return EffectResult(request.call.check_result(encoded))

    async def _withdraw_intent(self) -> None:
        """The function was not called: take the intent back, if it still counts."""
        try:
            await self._settle("not_done", call_ended=True)
        except EndwellError as refusal:
            raise self._inquiry.lost_error("the effect was not begun in time") from refusal
        if not self._recorder.hold.lasts_for(0):
            raise self._inquiry.lost_error("the lease ran out before the effect was begun")

    async def _on_failure(self, error: Exception) -> None:
        if isinstance(error, NotDone) and not self._inquiry.is_running:
            await self._settle("not_done", call_ended=True)
            await self._try_again_or_raise(error)
        else:
            await self._mark_unknown(error)
            await self._resolve(error)

    async def _mark_unknown(self, error: BaseException) -> None:
        is_timeout = isinstance(error, StepTimeout)
        reason = (
            "timeout" if is_timeout else f"{type(error).__name__}: {content.safe_str(error, REASON_LIMIT)}"
        )
        await self._recorder.commit(
            self._recorder.command(c.DoubtEffect, key=self._request.key, reason=content.clean_text(reason))
        )

    async def _resolve(self, error: Exception) -> None:
        """Settle an effect whose call failed here. While part of it may run, "not done" is only "not yet"."""
        call_ended = has_ended_by_itself(error)
        verdict = await self._inquiry.verdict_when_over(call_ended=call_ended)
        if isinstance(verdict, Done):
            await self._settle_done(verdict)
        elif verdict is not NOT_DONE:
            await self._hand_over()
        elif self._request.reconcile is not None:
            await self._settle_not_done(call_ended=call_ended)
            await self._try_again_or_raise(error)
        else:
            # Without a `reconcile` it stays unknown, unless it is called again now, which does no harm.
            await self._try_again_or_raise(error)
            await self._settle_not_done(call_ended=call_ended)

    async def _try_again_or_raise(self, error: Exception) -> None:
        self._failures += 1
        policy = self._request.policy
        is_final = isinstance(error, Retry) or not is_retryable(error, self._recorder.give_up_on)
        if is_final or self._failures > policy.max_retries:
            raise error
        await pause_before(self._recorder, self._request.step, policy, self._failures)

    # Another attempt began it

    async def _wait_for_other_worker(self, until: int) -> None:
        """Wait until the holder has said how it ended; if the holder is gone, look whether it was done."""
        inquiry = self._inquiry
        if not self._has_looked_early and await inquiry.is_holder_gone():
            self._has_looked_early = True
            verdict = await inquiry.ask_verdict()
            if isinstance(verdict, Done):
                return await self._settle_done(verdict, holder_gone=True)

        async def is_over() -> bool:
            return not await inquiry.is_intended()

        return await inquiry.wait_until(until, is_over)

    async def _settle_unknown(self) -> None:
        """Settle what another attempt left open. "Not done" counts only if no call can be in progress."""
        verdict = await self._inquiry.verdict_when_over(call_ended=False)
        if isinstance(verdict, Done):
            await self._settle_done(verdict)
        elif verdict is NOT_DONE:
            await self._settle_not_done(holder_gone=await self._inquiry.is_holder_gone())
        else:
            await self._hand_over()

    # Settling

    async def _settle_done(self, verdict: Done, *, holder_gone: bool = False) -> None:
        encoded = self._request.call.encode_result(verdict.value)
        digest = content.fingerprint(encoded)
        try:
            await self._settle("done", content=encoded, content_hash=digest, holder_gone=holder_gone)
        except EndwellError as refusal:
            _ignore_if_settled(refusal)

    async def _settle_not_done(self, **known: bool) -> None:
        try:
            await self._settle("not_done", may_repeat=self._request.may_repeat, **known)
        except EndwellError as refusal:
            if refusal.code == EFFECT_UNKNOWN:
                return await self._hand_over()
            _ignore_if_settled(refusal)

    async def _settle(self, verdict: Settlement, **known: Any) -> None:
        await self._recorder.commit(
            self._recorder.command(c.SettleEffect, key=self._request.key, verdict=verdict, **known)
        )

    async def _hand_over(self) -> None:
        """Block the task until a person settles the effect, unless it is settled already."""
        recorder, key = self._recorder, self._request.key
        try:
            await recorder.commit(recorder.command(c.Block, reason=EFFECT_UNKNOWN, effect_key=key))
        except EndwellError as refusal:
            return _ignore_if_settled(refusal)
        raise HandedOver(f"whether the effect {key!r} took place is for a person to say")


def _ignore_if_settled(refusal: EndwellError) -> None:
    """Another attempt or a person settled it, or a call of it has begun: the ledger says which."""
    if refusal.code not in ("effect_settled", "effect_in_flight"):
        raise refusal
