"""Carrying out one effect: intent first, then the call under a lease that covers it, then the record.

Whatever leaves it open whether the outside world was changed makes the effect unknown. Then the foreign
effect store is asked, then `reconcile`, then a person; it is never simply tried again.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from endwell.errors import EffectRejected, EndwellError, NotDone, Retry, StaleAttempt, StepTimeout, StoreError
from endwell.machine.unblocking import EFFECT_UNKNOWN
from endwell.model import commands as c
from endwell.model import content
from endwell.model.effect import Verdict as Settlement
from endwell.policy import ledger
from endwell.policy.limits import SECOND
from endwell.policy.retry import RetryPolicy
from endwell.worker.bench import PAUSE_SECONDS, Bench
from endwell.worker.calling import Work, pause_before
from endwell.worker.endings import is_retryable
from endwell.worker.suspended import HandedOver
from endwell.worker.verdicts import CANNOT_TELL, EFFECT_KEY, NOT_DONE, Done, Verdict, verdict_of

log = logging.getLogger(__name__)

REASON_LIMIT = 300
SLICE_SECONDS = 1.0
"""How long to sleep at most before it is looked again whether the turn is still ours."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One effect as it was asked for."""

    step: str
    key: str
    args_hash: str
    work: Work
    reconcile: Work | None
    policy: RetryPolicy
    deduplicates: bool
    accept_risk: bool


class Value(msgspec.Struct, frozen=True):
    """What the effect came to. Without one, the ledger is to be asked again."""

    value: Any


class NotBegun(Exception):
    """The effect's function was not called: the lease does not cover it, or it is too late."""


class Effecting:
    """One effect of one turn that has no record yet."""

    def __init__(self, bench: Bench, order: Order) -> None:
        self._bench = bench
        self._order = order
        self._place = f"{bench.task.namespace}/{order.key}"
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
        sent = self._bench.runtime.clock.monotonic()
        reply = await self._bench.commit(self._intent())
        match reply.ledger:
            case ledger.AllowExecute():
                return await self._carry_out(sent)
            case ledger.ReturnRecordedResult(card=card):
                return Value(self._order.work.replayed((await self._bench.card(card)).content))
            case ledger.WaitOtherWorker(until=until):
                await self._wait_for_other(until)
            case ledger.Rejected(code="effect_unknown"):
                await self._settle_unknown()
            case ledger.Rejected(code=code, message=message):
                raise EffectRejected(message, code=code, task_id=self._bench.task.id)
        return None

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
        except NotDone as error:
            await self._settle("not_done")
            await self._try_again_or_raise(error)
        except StaleAttempt:
            raise
        except Exception as error:
            await self._doubt(error)
            await self._resolve(error)
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
            await self._settle("not_done")
        except EndwellError as refusal:
            raise self._lost("the effect was not begun in time") from refusal
        if not self._bench.hold.covers(0):
            raise self._lost("the lease ran out before the effect was begun")

    def _lost(self, why: str) -> StaleAttempt:
        return StaleAttempt(f"effect {self._order.key!r}: {why}", task_id=self._bench.task.id)

    async def _execute(self, sent: float, began: float) -> bytes:
        """First of two phases: the result is in the effect store, and only then goes into the log."""
        bench, order = self._bench, self._order

        def check() -> None:
            if not self._may_start(sent):
                raise NotBegun

        bench.doing[order.step] = bench.runtime.clock.now_us()
        token = EFFECT_KEY.set(order.key)
        try:
            value = await order.work.run(bench.runtime, bench.threads, before=check)
            encoded = order.work.encoded(value)
        finally:
            EFFECT_KEY.reset(token)
            del bench.doing[order.step]
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

    async def _found(self) -> bytes | None:
        effects = self._bench.effects
        if effects is None:
            return None
        found: bytes | None = await self._bench.asked(lambda: effects.get(self._place))
        return found

    async def _finish(self, encoded: bytes, took: int) -> Value:
        order = self._order
        digest = content.fingerprint(encoded)
        await self._bench.commit(
            self._bench.command(
                c.FinishEffect,
                step=order.step,
                key=order.key,
                content=encoded,
                content_hash=digest,
                took=took,
            )
        )
        return Value(order.work.checked(encoded))

    async def _doubt(self, error: BaseException) -> None:
        is_late = isinstance(error, StepTimeout)
        reason = "timeout" if is_late else f"{type(error).__name__}: {content.safe_str(error, REASON_LIMIT)}"
        await self._bench.commit(
            self._bench.command(c.DoubtEffect, key=self._order.key, reason=content.clean_text(reason))
        )

    async def _resolve(self, error: Exception) -> None:
        """Our own call failed. If it is still running in a thread, "not done" is only "not yet"."""
        verdict = await self._verdict()
        if isinstance(verdict, Done):
            await self._settle_done(verdict)
        elif verdict is not NOT_DONE or self._order.work.is_still_running:
            await self._hand_over()
        elif self._order.reconcile is not None:
            await self._settle("not_done")
            await self._try_again_or_raise(error)
        else:
            # Nobody has looked: it stays unknown, unless it is about to be called again, which does no harm.
            await self._try_again_or_raise(error)
            await self._settle("not_done")

    async def _try_again_or_raise(self, error: Exception) -> None:
        self._failures += 1
        policy = self._order.policy
        is_final = isinstance(error, Retry) or not is_retryable(error, self._bench.give_up_on)
        if is_final or self._failures > policy.max_retries:
            raise error
        await pause_before(self._bench, self._order.step, policy, self._failures)

    async def _settle_unknown(self) -> None:
        """Another attempt left it open. "Not done" counts only if nobody can still be executing it."""
        verdict = await self._verdict()
        if isinstance(verdict, Done):
            await self._settle_done(verdict)
        elif verdict is NOT_DONE:
            await self._settle_not_done(is_gone=await self._holder_is_gone())
        else:
            await self._hand_over()

    async def _settle_not_done(self, *, is_gone: bool) -> None:
        order = self._order
        try:
            await self._settle(
                "not_done", holder_gone=is_gone, may_repeat=order.deduplicates or order.accept_risk
            )
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

    async def _verdict(self) -> Verdict:
        """What can be known about it without executing it."""
        found = await self._found()
        if found is not None:
            return Done(content.decode_stored(found))
        if self._order.reconcile is None:
            return NOT_DONE if self._order.deduplicates else CANNOT_TELL
        await self._bench.expect(self._order.step, self._order.reconcile.seconds)
        try:
            verdict = verdict_of(await self._order.reconcile.run(self._bench.runtime, self._bench.threads))
            if isinstance(verdict, Done):
                self._order.work.encoded(verdict.value)  # what cannot be kept says nothing
            return verdict
        except Exception as error:
            log.warning("reconcile of effect %r failed: %r", self._order.key, error)
            return CANNOT_TELL

    async def _wait_for_other(self, until: int) -> None:
        """Until whoever intends it has said how it ended, or can no longer be at it.

        If that one is dead, look whether it got there.
        """
        bench = self._bench
        if not self._has_looked_early and await self._holder_is_gone():
            self._has_looked_early = True
            verdict = await self._verdict()
            if isinstance(verdict, Done):
                return await self._settle_done(verdict, holder_gone=True)
        left = (until - await bench.asked(bench.store.now)) / SECOND
        await bench.expect(self._order.step, max(left, 0))
        while left > 0:
            if bench.hold.is_lost:
                raise self._lost("the task was taken away meanwhile")
            await bench.runtime.sleep(min(left, SLICE_SECONDS, bench.settings.poll_seconds))
            if not await self._is_intended():
                break
            left = (until - await bench.asked(bench.store.now)) / SECOND
        return None

    async def _is_intended(self) -> bool:
        """Whether whoever intends it has still not said how it ended."""
        bench = self._bench
        effect = await bench.asked(lambda: bench.store.effect(bench.task.namespace, self._order.key))
        return effect is not None and effect.status == "intended"

    async def _holder_is_gone(self) -> bool:
        """Whether the session that began it said goodbye, or its process is gone from this machine."""
        bench = self._bench
        effect = await bench.asked(lambda: bench.store.effect(bench.task.namespace, self._order.key))
        session_id = effect.session_id if effect is not None else None
        if session_id is None:
            return False
        session = await bench.asked(lambda: bench.store.session(bench.task.namespace, session_id))
        if session is None:
            return False
        if session.end_reason == "goodbye":
            return True
        return session.host == bench.runtime.host() and not bench.runtime.is_alive(session.pid)


def _ignore_if_settled(refusal: EndwellError) -> None:
    """Somebody else settled it meanwhile, or is at it: the ledger says which."""
    if refusal.code not in ("effect_settled", "effect_in_flight"):
        raise refusal
