"""The verbs with which a turn records its work: `step`, `gather`, `draft`, `progress`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Literal

import msgspec

from endwell.errors import AgentSignal, StaleAttempt, StepFailed, StepTimeout, UsageError
from endwell.model import commands as c
from endwell.model import content
from endwell.model.card import nudge_id
from endwell.model.task import ErrorInfo
from endwell.policy.limits import SECOND
from endwell.policy.retry import RetryPolicy
from endwell.turn.branches import async_parts, gathered
from endwell.turn.endings import is_retryable
from endwell.turn.function_calls import (
    CheckedValue,
    Duration,
    FunctionCall,
    Tries,
    bound,
    inputs_of,
    pause_before,
    replayed,
    seconds_of,
    tries_of,
)
from endwell.turn.recorder import BRANCH, Recorder
from endwell.turn.repeat_guard import given_of, is_worth_counting

OnTimeout = Literal["retryable", "permanent"]
NOTE_LIMIT = 500

_error_encoder = msgspec.json.Encoder(order="sorted")


async def tell_progress(bench: Recorder, note: str | None, *, news: str | None) -> None:
    """A sign of life that says `note`; what of it counts as new is `news`."""
    quiet = bench.circles.without_news(news)
    bench.refuse_ended(await bench.commit(bench.command(c.Progress, note=note, without_news=quiet)))


class StepVerbs:
    """For a context that has a bench."""

    _bench: Recorder

    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        timeout: Duration | None = None,
        retry: Tries = None,
        on_timeout: OnTimeout = "retryable",
        check_inputs: bool = False,
        result: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Run a function and record what it returns; once recorded, it is never run again.

        `fn` may be `async def` or `def`; a `def` runs in a thread. What comes back is always the recorded
        value, as `result=` or the function's return annotation says. `retry=3` calls it up to three times.
        `on_timeout="permanent"` makes a timeout a failure that is recorded for good. `check_inputs=True`
        refuses a replay with other inputs.
        """
        bench = self._bench
        step = bench.begin(name)
        try:
            seconds = seconds_of(timeout, bench.step_timeout)
            work = FunctionCall.of(name, fn, bound(fn, args, kwargs), seconds, result)
            inputs = inputs_of(name, args, kwargs) if check_inputs else ""
            given = given_of(fn, args, kwargs)
            card = await bench.recorded(step)
            if card is not None:
                value = await replayed(bench, work, card, inputs)
                await bench.circles.stepped(BRANCH.get(), name, given, card.hash, is_new=False)
                return value
            doing = StepCall(bench, step, work, inputs, on_timeout)
            value = await (doing.once() if retry is None else doing.run(tries_of(bench, retry)))
            await bench.circles.stepped(BRANCH.get(), name, given, doing.digest, is_new=True)
            return value
        except Exception as error:
            if is_worth_counting(error):
                await bench.circles.failed(BRANCH.get(), name, error)
            raise
        finally:
            bench.end(step)

    async def gather(self, *parts: Any) -> list[Any]:
        """Run parts beside each other, each in a branch of its own; their values in order.

        Parts are verbs that were not awaited (`ctx.step(...)`) or functions of no argument. All of them
        end before the first failure is raised; what they wait for is waited for together.
        """
        return await gathered(self._bench, async_parts(parts))

    async def draft(self, value: Any) -> None:
        """Keep a partial deliverable; it is salvaged if the task ends without a whole one."""
        encoded = content.encode(value, what="draft")
        bench, digest = self._bench, content.fingerprint(encoded)
        await bench.commit(bench.command(c.KeepDraft, content=encoded, content_hash=digest))
        bench.circles.drafted(digest)

    async def progress(self, note: str | None = None) -> None:
        """Say that the turn is getting somewhere; without a sign of progress it is reaped in the end.

        Raises `StaleAttempt` if the task has been given to somebody else: stop at once then. A sign of life
        is not news: an agent that records nothing new and says nothing new for long is nudged, then stopped.
        """
        text = None if note is None else content.clean_text(content.safe_str(note), NOTE_LIMIT)
        await tell_progress(self._bench, text, news=text)

    async def nudges(self) -> list[str]:
        """What this task's agent was told because it seemed to go round in circles, oldest first."""
        bench = self._bench
        if not bench.nudges:
            return []
        await bench.commit(bench.command(c.HearNudges))
        cards = [await bench.card(nudge_id(bench.task.id, n)) for n in range(1, bench.nudges + 1)]
        return [str(content.decode_stored(card.content)["message"]) for card in cards]


class StepCall:
    """One step that has no record yet."""

    def __init__(self, bench: Recorder, step: str, work: FunctionCall, inputs: str, on_timeout: str) -> None:
        if on_timeout not in ("retryable", "permanent"):
            raise UsageError('on_timeout must be "retryable" or "permanent"')
        self._bench = bench
        self._step = step
        self._work = work
        self._inputs = inputs
        self._is_permanent = on_timeout == "permanent"
        self.digest = ""

    async def run(self, policy: RetryPolicy) -> Any:
        """Call until it returns something that can be kept, or there is no point in another call."""
        for number in count(1):
            try:
                return await self.once()
            except (StaleAttempt, AgentSignal):
                raise
            except Exception as error:
                if number > policy.max_retries or not is_retryable(error, self._bench.give_up_on):
                    raise
            await pause_before(self._bench, self._step, policy, number)
        raise AssertionError("unreachable")

    async def once(self) -> Any:
        """One call."""
        bench, work = self._bench, self._work
        began = bench.runtime.clock.monotonic()
        await bench.expect(self._step, work.seconds)
        bench.doing[self._step] = bench.runtime.clock.now_us()
        try:
            value = await work.run(bench.runtime, bench.threads)
        except StepTimeout as late:
            await self._record_timeout(late)
            raise
        finally:
            del bench.doing[self._step]
        encoded = work.encoded(value)
        checked = work.checked(encoded)  # before it is recorded: a record stays for ever
        await self._record(encoded, int((bench.runtime.clock.monotonic() - began) * SECOND))
        return checked

    async def _record(self, encoded: bytes, took: int) -> None:
        if self._inputs:
            encoded = msgspec.json.encode(CheckedValue(self._inputs, msgspec.Raw(encoded)))
        self.digest = content.fingerprint(encoded)
        await self._bench.commit(
            self._bench.command(
                c.RecordStep,
                step=self._step,
                content=encoded,
                content_hash=self.digest,
                took=took,
                is_checked=bool(self._inputs),
            )
        )

    async def _record_timeout(self, late: StepTimeout) -> None:
        """A failure for good is a record like any other; one that may be tried again leaves none."""
        error = ErrorInfo(late.code, type(late).__name__, late.message, retryable=not self._is_permanent)
        encoded = _error_encoder.encode(error) if self._is_permanent else None
        await self._bench.commit(
            self._bench.command(
                c.RecordStep,
                step=self._step,
                content=encoded,
                content_hash="" if encoded is None else content.fingerprint(encoded),
                result_type="permanent_failure" if self._is_permanent else "retryable_failure",
                took=int(self._work.seconds * SECOND),
                error=error,
            )
        )
        if self._is_permanent:
            raise StepFailed(late.message, code=late.code) from late
