"""Carrying out one effect: intent first, then the call under a lease that covers it, then the record.

Whatever leaves it open whether the outside world was changed makes the effect unknown. Then the foreign
effect store is asked, then `reconcile`, then a person; it is never simply tried again.
"""

from __future__ import annotations

import asyncio
import logging
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
)
from endwell.machine.unblock import EFFECT_UNKNOWN
from endwell.model import commands as c
from endwell.model import content
from endwell.model.effect import Verdict as Settlement
from endwell.policy import ledger
from endwell.policy.limits import SECOND
from endwell.runtime.followed_work import follow_work
from endwell.runtime.running_calls import CURRENT_CALL
from endwell.turn.effect_doubt import SLICE_SECONDS, EffectInDoubt, EffectRequest, is_holder_gone
from endwell.turn.endings import is_retryable
from endwell.turn.function_calls import CheckedValue, has_ended_by_itself, pause_before, replayed
from endwell.turn.recorder import PAUSE_SECONDS, Recorder
from endwell.turn.suspension import HandedOver
from endwell.turn.verdicts import CANNOT_TELL, EFFECT_KEY, NOT_DONE, Done, Verdict

log = logging.getLogger(__name__)

REASON_LIMIT = 300


class Value(msgspec.Struct, frozen=True):
    """What the effect came to. Without one, the ledger is to be asked again."""

    value: Any


class NotBegun(Exception):
    """The effect's function was not called: the lease does not cover it, or another call is in progress."""


class EffectCall(EffectInDoubt):
    """One effect of one turn that has no record yet."""

    def __init__(self, bench: Recorder, order: EffectRequest) -> None:
        super().__init__(bench, order)
        self._failures = 0
        self._has_looked_early = False

    async def run(self) -> Any:
        """Ask the ledger, and do what it says, until there is a result."""
        while True:
            found = await self._once()
            if found is not None:
                return found.value

    async def _once(self) -> Value | None:
        await self._until_covered()
        await self._refuse_beside_another()
        sent = self._bench.runtime.clock.monotonic()
        reply = await self._bench.commit(self._intent())
        match reply.ledger:
            case ledger.AllowExecute():
                return await self._carry_out(sent)
            case ledger.ReturnRecordedResult(card=card):
                return Value(await replayed(self._bench, self._order.work, await self._bench.card(card)))
            case ledger.WaitOtherWorker(until=until):
                await self._wait_for_other(until)
            case ledger.Rejected(code="effect_unknown"):
                await self._settle_unknown()
            case ledger.Rejected(code=code, message=message):
                raise EffectRejected(message, code=code, task_id=self._bench.task.id)
        return None

    async def _refuse_beside_another(self) -> None:
        """A call that an earlier attempt left running here is waited for, and never made again beside it."""
        left = self._order.work.seconds
        while self._is_running and await self._may_be_made():
            if left <= 0:
                why = f"a call of the effect {self._order.key!r} is still running in this process"
                raise TurnError(why, code="effect_in_flight", hint="the task tries again later")
            await self._pause(left)
            left -= SLICE_SECONDS

    def _intent(self) -> c.IntendEffect:
        order = self._order
        return self._bench.command(
            c.IntendEffect,
            step=order.step,
            key=order.key,
            args_hash=order.args_hash,
            timeout=int(order.work.seconds * SECOND),
        )

    async def _carry_out(self, sent: float) -> Value | None:
        """The intent is ours. What the foreign store has, took place before the log could say so."""
        found = await self._found()
        if found is not None:
            return await self._finish(found, 0)
        began = self._bench.runtime.clock.monotonic()
        try:
            encoded = await self._execute(sent, began)
        except NotBegun:
            await self._withdraw()
        except StaleAttempt:
            raise
        except Exception as error:
            await self._failed(error)
        except BaseException as error:
            await self._doubt(error)
            raise
        else:
            return await self._finish(encoded, int((self._bench.runtime.clock.monotonic() - began) * SECOND))
        return None

    def _may_start(self, sent: float) -> bool:
        """Only while the lease covers it by our own clock, and others surely still keep away."""
        bench, seconds = self._bench, self._order.work.seconds
        return bench.hold.covers(self._cover()) and bench.runtime.clock.monotonic() - sent < seconds / 2

    def _cover(self) -> float:
        return min(self._order.work.seconds, self._bench.settings.lease_seconds / 2)

    async def _until_covered(self) -> None:
        """The next heartbeat renews the lease; without one this turn is not ours any more."""
        hold = self._bench.hold
        await hold.look()
        while not hold.covers(self._cover()):
            if not hold.covers(0):
                raise self._lost("the lease does not cover the effect any more")
            await self._bench.runtime.sleep(PAUSE_SECONDS / 4)
            await hold.look()

    async def _withdraw(self) -> None:
        """Nothing was called, and nobody knows that better: the intent is taken back, if it still counts."""
        try:
            await self._settle("not_done", call_ended=True)
        except EndwellError as refusal:
            raise self._lost("the effect was not begun in time") from refusal
        if not self._bench.hold.covers(0):
            raise self._lost("the lease ran out before the effect was begun")

    async def _execute(self, sent: float, began: float) -> bytes:
        """First of two phases: the result is in the effect store, and only then goes into the log."""
        bench, order = self._bench, self._order

        def check() -> None:
            if not self._may_start(sent):
                raise NotBegun

        follow_work(asyncio.get_running_loop())
        since = bench.runtime.clock.now_us()
        call = bench.calls.begin(self._place, bench.attempt_id, order.step, since)
        if call is None:
            raise NotBegun
        bench.doing[order.step] = since
        tokens = EFFECT_KEY.set(order.key), CURRENT_CALL.set(call)
        try:
            value = await order.work.run(bench.runtime, bench.threads, before=check)
        finally:
            call.has_returned = True
            EFFECT_KEY.reset(tokens[0])
            CURRENT_CALL.reset(tokens[1])
            del bench.doing[order.step]
        encoded = order.work.encoded(value)
        await self._put(encoded, began)
        return encoded

    async def _put(self, encoded: bytes, began: float) -> None:
        """A store that is away is asked again, for as long as the effect might have taken."""
        bench = self._bench
        while bench.effects is not None:
            await bench.hold.look()
            if not bench.hold.covers(0):
                raise self._lost("the lease ran out before its result was put away")
            try:
                await bench.effects.put(self._place, encoded, bench.attempt_id)
                return
            except StoreError:
                if bench.runtime.clock.monotonic() - began > self._order.work.seconds:
                    raise
                await bench.runtime.sleep(PAUSE_SECONDS)

    async def _finish(self, encoded: bytes, took: int) -> Value:
        order = self._order
        kept = msgspec.json.encode(CheckedValue(order.args_hash, msgspec.Raw(encoded)))
        await self._bench.commit(
            self._bench.command(
                c.FinishEffect,
                step=order.step,
                key=order.key,
                content=kept,
                content_hash=content.fingerprint(kept),
                took=took,
                is_checked=True,
            )
        )
        return Value(order.work.checked(encoded))

    async def _doubt(self, error: BaseException) -> None:
        is_late = isinstance(error, StepTimeout)
        reason = "timeout" if is_late else f"{type(error).__name__}: {content.safe_str(error, REASON_LIMIT)}"
        await self._bench.commit(
            self._bench.command(c.DoubtEffect, key=self._order.key, reason=content.clean_text(reason))
        )

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, NotDone) and not self._is_running:
            await self._settle("not_done", call_ended=True)
            await self._try_again_or_raise(error)
        else:
            await self._doubt(error)
            await self._resolve(error)

    async def _resolve(self, error: Exception) -> None:
        """Our own call failed. While something of it may still be running, "not done" is only "not yet"."""
        call_ended = has_ended_by_itself(error)
        verdict = await self._verdict_when_over(call_ended=call_ended)
        if isinstance(verdict, Done):
            await self._settle_done(verdict)
        elif verdict is not NOT_DONE:
            await self._hand_over()
        elif self._order.reconcile is not None:
            await self._settle_not_done(call_ended=call_ended)
            await self._try_again_or_raise(error)
        else:
            # Nobody has looked: it stays unknown, unless it is about to be called again, which does no harm.
            await self._try_again_or_raise(error)
            await self._settle_not_done(call_ended=call_ended)

    async def _verdict_when_over(self, *, call_ended: bool) -> Verdict:
        """What can be known. "Not done" is asked for again when the call's time and the margin are over.

        It counts only if no call was in progress when it was asked for: the call may have ended since.
        """
        until, asked_at, was_running = await self._surely_over_at(), await self._now(), self._is_running
        verdict = await self._verdict()
        may_count = asked_at >= until or call_ended or self._may_repeat
        if verdict is not NOT_DONE or (may_count and not was_running):
            return verdict

        async def is_over() -> bool:
            return call_ended and not self._is_running

        await self._wait(max(until, await self._now() + self._bench.limits.effect_margin), is_over)
        was_running = self._is_running
        verdict = await self._verdict()
        return CANNOT_TELL if verdict is NOT_DONE and was_running else verdict

    async def _try_again_or_raise(self, error: Exception) -> None:
        self._failures += 1
        policy = self._order.policy
        is_final = isinstance(error, Retry) or not is_retryable(error, self._bench.give_up_on)
        if is_final or self._failures > policy.max_retries:
            raise error
        await pause_before(self._bench, self._order.step, policy, self._failures)

    async def _settle_unknown(self) -> None:
        """Another attempt left it open. "Not done" counts only if nobody can still be executing it."""
        verdict = await self._verdict_when_over(call_ended=False)
        if isinstance(verdict, Done):
            await self._settle_done(verdict)
        elif verdict is NOT_DONE:
            await self._settle_not_done(holder_gone=await is_holder_gone(self._bench, self._order.key))
        else:
            await self._hand_over()

    async def _settle_not_done(self, **known: bool) -> None:
        try:
            await self._settle("not_done", may_repeat=self._may_repeat, **known)
        except EndwellError as refusal:
            if refusal.code == EFFECT_UNKNOWN:
                return await self._hand_over()
            _ignore_if_settled(refusal)

    async def _settle_done(self, verdict: Done, *, holder_gone: bool = False) -> None:
        encoded = self._order.work.encoded(verdict.value)
        digest = content.fingerprint(encoded)
        try:
            await self._settle("done", content=encoded, content_hash=digest, holder_gone=holder_gone)
        except EndwellError as refusal:
            _ignore_if_settled(refusal)

    async def _settle(self, verdict: Settlement, **said: Any) -> None:
        await self._bench.commit(
            self._bench.command(c.SettleEffect, key=self._order.key, verdict=verdict, **said)
        )

    async def _hand_over(self) -> None:
        """A person must say what became of it; this turn is over. Unless one was faster: then it goes on."""
        key = self._order.key
        try:
            await self._bench.commit(self._bench.command(c.Block, reason=EFFECT_UNKNOWN, effect_key=key))
        except EndwellError as refusal:
            return _ignore_if_settled(refusal)
        raise HandedOver(f"whether the effect {self._order.key!r} took place is for a person to say")

    async def _wait_for_other(self, until: int) -> None:
        """Until whoever intends it has said how it ended, or can no longer be at it.

        If that one is dead, look whether it got there.
        """
        if not self._has_looked_early and await is_holder_gone(self._bench, self._order.key):
            self._has_looked_early = True
            verdict = await self._verdict()
            if isinstance(verdict, Done):
                return await self._settle_done(verdict, holder_gone=True)
        return await self._wait(until, self._is_said)


def _ignore_if_settled(refusal: EndwellError) -> None:
    """Somebody else settled it meanwhile, or is at it: the ledger says which."""
    if refusal.code not in ("effect_settled", "effect_in_flight"):
        raise refusal
