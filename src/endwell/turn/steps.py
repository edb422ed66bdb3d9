"""The verbs with which a turn records its work: `step`, `gather`, `draft`, `progress`, `nudges`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Literal

import msgspec

from endwell.errors import AgentSignal, StaleAttempt, StepFailed, StepTimeout, UsageError
from endwell.model import commands as c
from endwell.model import content
from endwell.model.card import nudge_id
from endwell.model.moments import SECOND
from endwell.model.task import ErrorInfo
from endwell.policy.retry import RetryPolicy
from endwell.turn.branches import async_branches, run_branches
from endwell.turn.endings import is_retryable
from endwell.turn.function_calls import (
    CheckedValue,
    Duration,
    FunctionCall,
    Tries,
    inputs_hash,
    pause_before,
    replay_record,
    retry_policy_of,
    seconds_of,
)
from endwell.turn.recorder import Recorder
from endwell.turn.repeat_guard import comparable_arguments, is_countable

OnTimeout = Literal["retryable", "permanent"]
NOTE_LIMIT = 500

_error_encoder = msgspec.json.Encoder(order="sorted")


class StepVerbs:
    """The part of a context that records."""

    _recorder: Recorder

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

        `fn` may be `async def` or `def`; a `def` runs in a thread. The value that comes back is always the
        recorded one, of the type `result=` or of the function's return annotation. `retry=3` calls it up to
        three times. `on_timeout="permanent"` makes a timeout a failure that is recorded for good.
        `check_inputs=True` refuses a replay with other inputs.
        """
        recorder, repeats = self._recorder, self._recorder.repeat_guard
        with recorder.ids.step(name) as step:
            try:
                seconds = seconds_of(timeout, recorder.step_timeout)
                call = FunctionCall(name, fn, args, kwargs, seconds=seconds, result=result)
                inputs = inputs_hash(name, args, kwargs) if check_inputs else ""
                card = await recorder.record_of(step)
                if card is not None:
                    value, digest = await replay_record(recorder, call, card, inputs), card.hash
                else:
                    work = StepCall(recorder, step, call, inputs, on_timeout)
                    value = await work.run(None if retry is None else retry_policy_of(recorder, retry))
                    digest = work.digest
                given = comparable_arguments(fn, args, kwargs)
                await recorder.report_repeat(repeats.on_step(name, given, digest, is_new=card is None))
                return value
            except Exception as error:
                if is_countable(error):
                    await recorder.report_repeat(repeats.on_exception(name, error))
                raise

    async def gather(self, *parts: Any) -> list[Any]:
        """Run parts beside each other, each in a branch of its own; their values in order.

        Parts are verbs that were not awaited (`ctx.step(...)`) or functions of no argument. All of them
        end before the first failure is raised; what they wait for is waited for together.
        """
        return await run_branches(self._recorder, async_branches(parts))

    async def draft(self, value: Any) -> None:
        """Keep a partial deliverable; it is salvaged if the task ends without a whole one."""
        encoded = content.encode(value, what="draft")
        recorder, digest = self._recorder, content.fingerprint(encoded)
        await recorder.commit(recorder.command(c.KeepDraft, content=encoded, content_hash=digest))
        recorder.repeat_guard.note_draft(digest)

    async def progress(self, note: str | None = None) -> None:
        """Record a sign of progress; without one for too long the turn is reaped.

        Raises `StaleAttempt` if another worker has the task: stop at once then. An agent that records
        nothing new and says nothing new for long is nudged, then stopped.
        """
        text = None if note is None else content.clean_text(content.safe_str(note), NOTE_LIMIT)
        await self._recorder.tell_progress(text, news=text)

    async def nudges(self) -> list[str]:
        """The messages this task's agent got because it seemed to repeat itself, oldest first."""
        recorder = self._recorder
        if not recorder.nudges:
            return []
        await recorder.commit(recorder.command(c.HearNudges))
        cards = [await recorder.card(nudge_id(recorder.task.id, n)) for n in range(1, recorder.nudges + 1)]
        return [str(content.decode_stored(card.content)["message"]) for card in cards]


class StepCall:
    """One step that has no record yet."""

    def __init__(
        self, recorder: Recorder, step: str, call: FunctionCall, inputs: str, on_timeout: str
    ) -> None:
        if on_timeout not in ("retryable", "permanent"):
            raise UsageError('on_timeout must be "retryable" or "permanent"')
        self._recorder = recorder
        self._step = step
        self._call = call
        self._inputs = inputs
        self._is_permanent = on_timeout == "permanent"
        self.digest = ""

    async def run(self, policy: RetryPolicy | None) -> Any:
        """Call until a result can be recorded, or another call makes no sense; without a policy, once."""
        if policy is None:
            return await self._run_once()
        for number in count(1):
            try:
                return await self._run_once()
            except (StaleAttempt, AgentSignal):
                raise
            except Exception as error:
                if number > policy.max_retries or not is_retryable(error, self._recorder.give_up_on):
                    raise
            await pause_before(self._recorder, self._step, policy, number)
        raise AssertionError("unreachable")

    async def _run_once(self) -> Any:
        recorder, call = self._recorder, self._call
        began = recorder.runtime.clock.monotonic()
        await recorder.announce_step(self._step, call.seconds)
        recorder.doing[self._step] = recorder.runtime.clock.now_us()
        try:
            value = await call.run(recorder.runtime, recorder.threads)
        except StepTimeout as timeout:
            await self._record_timeout(timeout)
            raise
        finally:
            del recorder.doing[self._step]
        encoded = call.encode_result(value)
        checked = call.check_result(encoded)  # before it is recorded: a record stays for ever
        await self._record(encoded, int((recorder.runtime.clock.monotonic() - began) * SECOND))
        return checked

    async def _record(self, encoded: bytes, took: int) -> None:
        if self._inputs:
            encoded = msgspec.json.encode(CheckedValue(self._inputs, msgspec.Raw(encoded)))
        self.digest = content.fingerprint(encoded)
        await self._recorder.commit(
            self._recorder.command(
                c.RecordStep,
                step=self._step,
                content=encoded,
                content_hash=self.digest,
                took=took,
                is_checked=bool(self._inputs),
            )
        )

    async def _record_timeout(self, timeout: StepTimeout) -> None:
        """Log the timeout; a permanent one is a record like any other, and fails the step for good."""
        error = ErrorInfo(
            timeout.code, type(timeout).__name__, timeout.message, retryable=not self._is_permanent
        )
        encoded = _error_encoder.encode(error) if self._is_permanent else None
        await self._recorder.commit(
            self._recorder.command(
                c.RecordStep,
                step=self._step,
                content=encoded,
                content_hash="" if encoded is None else content.fingerprint(encoded),
                result_type="permanent_failure" if self._is_permanent else "retryable_failure",
                took=int(self._call.seconds * SECOND),
                error=error,
            )
        )
        if self._is_permanent:
            raise StepFailed(timeout.message, code=timeout.code) from timeout
