"""The workload of a simulation: agents of every kind, and a seeded mix of tasks for them.

The result of each task follows from its payload, so that the oracle can check it. Most kinds share the agent
`job`: claiming costs a worker a few questions for each agent that it serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from endwell.app import Endwell
from endwell.errors import CallFailed, EffectRejected, Fail, NotDone, SignalTimeout, ToolFailed
from endwell.policy.approval import Approval
from endwell.runtime.base import Runtime
from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.effect_sink import Outside
from endwell.testing.foreign_worker import Tool
from endwell.turn.context import Context, SyncContext
from endwell.turn.effect_verdict import NOT_DONE, Done
from endwell.turn.suspension import capture_outcome

ANYTHING: Final = object()
"""Any result is right."""

Job = dict[str, Any]
Doing = Callable[[Context, Job], Awaitable[Any]]


def register(app: Endwell, outside: Outside, *, is_outdated: bool = False) -> None:
    """Register all agents with an app; an outdated copy of the code has no approval rule."""
    work = Workload(app, outside)
    kinds: dict[str, Doing] = {
        kind: getattr(work, f"run_{kind}") for kind in MIX if hasattr(work, f"run_{kind}")
    }

    @app.agent("job", retries=3, delays=(5.0, 20.0, 60.0))
    async def run_job(ctx: Context, job: Job) -> Any:
        return await kinds[job["kind"]](ctx, job)

    @app.agent("serial")
    async def run_serial(ctx: Context, job: Job) -> Any:
        return await work.run_steps(ctx, job)

    @app.agent("limited", concurrency=2)
    async def run_limited(ctx: Context, job: Job) -> Any:
        return await work.run_plain(ctx, job)

    @app.agent("guarded", approval=None if is_outdated else Approval(within=1200.0))
    async def run_guarded(ctx: Context, job: Job) -> Any:
        return await work.run_payer(ctx, job)

    @app.agent("threaded")
    def run_threaded(ctx: SyncContext, job: Job) -> int:
        return int(ctx.step("one", lambda: job["n"]) + ctx.step("two", lambda: 1))

    @app.tool("calc")
    async def run_calc(asked: Job) -> int:
        await app.runtime.sleep(asked["seconds"])
        return int(asked["n"]) + 1


def foreign_tools(dice: Dice, runtime: Runtime) -> dict[str, Tool]:
    """Make the tools of a foreign worker: `abroad`, which no other worker serves, and `limited`."""

    async def run_double(job: Job) -> int:
        await runtime.sleep(job["seconds"] * dice.choice((1, 1, 10)))
        if dice.happens(0.15):
            raise ValueError("not this time")
        return int(job["n"]) * 2

    return {"abroad": run_double, "limited": run_double}


class Workload:
    """One method for each kind of task."""

    def __init__(self, app: Endwell, outside: Outside) -> None:
        self._app = app
        self._outside = outside
        self._sleep = app.runtime.sleep

    async def run_plain(self, ctx: Context, job: Job) -> int:
        await self._sleep(job["seconds"])
        return int(job["n"]) * 2

    async def run_flaky(self, ctx: Context, job: Job) -> str:
        await self._sleep(job["seconds"])
        if self._outside.fails_again(job["fails"]):
            raise ValueError(f"not yet {job['n']}")
        return "at last"

    async def run_hopeless(self, ctx: Context, job: Job) -> None:
        await self._sleep(job["seconds"])
        raise Fail("it cannot be done")

    async def run_stuck(self, ctx: Context, job: Job) -> None:
        await self._sleep(100_000)

    async def run_steps(self, ctx: Context, job: Job) -> int:
        total = 0
        for number in range(job["steps"]):
            total += await ctx.step(f"s{number}", self._run_step, job, number)
        return total

    async def run_beside(self, ctx: Context, job: Job) -> int:
        parts = [ctx.step(f"s{number}", self._run_step, job, number) for number in range(3)]
        return sum(await ctx.gather(*parts))

    async def _run_step(self, job: Job, number: int) -> int:
        self._outside.note_run(f"s{number}")
        await self._sleep(job["seconds"] + self._outside.fates.step_seconds())
        return int(job["n"]) + number

    async def run_drafts(self, ctx: Context, job: Job) -> None:
        await ctx.draft({"half": job["n"]})
        await self._sleep(job["seconds"])
        await ctx.progress("half of it")
        raise ValueError("the other half is missing")

    async def run_long(self, ctx: Context, job: Job) -> str:
        for _ in range(job["steps"]):
            await self._sleep(job["seconds"] * 5)
            await ctx.progress("on it")
        return "long"

    async def run_payer(self, ctx: Context, job: Job) -> Any:
        return await ctx.effect("pay", self._change_world, job, key=f"pay:{job['n']}", reconcile=self._find)

    async def run_sender(self, ctx: Context, job: Job) -> Any:
        return await ctx.effect("send", self._change_world, job, key=f"send:{job['n']}")

    async def run_mailer(self, ctx: Context, job: Job) -> Any:
        return await ctx.effect("mail", self._change_world, job, key=f"mail:{job['n']}", deduplicates=True)

    async def run_merger(self, ctx: Context, job: Job) -> Any:
        await ctx.approve("Merge it?", show={"n": job["n"]}, within=job["patience"])
        return await ctx.effect(
            "merge", self._change_world, job, key=f"merge:{job['n']}", reconcile=self._find
        )

    async def run_hasty(self, ctx: Context, job: Job) -> Any:
        """Stop waiting for an effect and ask for it again, at growing intervals."""
        pause = 0.01
        while True:
            try:
                async with self._app.runtime.timeout(job["seconds"] / 3):
                    return await ctx.effect(
                        "pay", self._change_world, job, key=f"hasty:{job['n']}", reconcile=self._find
                    )
            except TimeoutError:
                await self._sleep(pause)
                pause = min(2 * pause, 10.0)

    async def run_outliving(self, ctx: Context, job: Job) -> Any:
        """Make a call that outlives the coroutine of its effect, as a thread would."""
        key = f"outliving:{job['n']}"
        return await ctx.effect("pay", self._give_up, job, key=key, reconcile=self._find, retry=3)

    async def _give_up(self, job: Job, idempotency_key: str) -> Any:
        call = self._app.runtime.start(
            capture_outcome(self._change_world(job, idempotency_key)), "a call that outlives its effect"
        )
        async with self._app.runtime.timeout(job["seconds"] * 0.7):
            value, error = await asyncio.shield(call)
        if error is not None:
            raise error
        return value

    async def run_declined(self, ctx: Context, job: Job) -> Any:
        """Have an effect that reports "not done" at first and is tried again much later."""
        key = f"declined:{job['n']}"
        try:
            return await ctx.effect("pay", self._decline_once, job, key=key, reconcile=self._find)
        except NotDone:
            await ctx.sleep(job["patience"])

    async def _decline_once(self, job: Job, idempotency_key: str) -> Any:
        if self._outside.fails_again(1):
            raise NotDone("not now")
        return await self._change_world(job, idempotency_key)

    async def run_confused(self, ctx: Context, job: Job) -> str:
        """Use one key for two effects."""
        key = f"confused:{job['n']}"
        await ctx.effect("pay", self._change_world, job, key=key, reconcile=self._find)
        try:
            await ctx.effect("send", self._give_up, job, key=key, reconcile=self._find)
        except EffectRejected:
            return "refused"
        return "skipped"

    async def _change_world(self, job: Job, idempotency_key: str) -> Any:
        pid, outside = self._app.runtime.process_id(), self._outside
        with outside.enter(pid):
            await self._sleep(job["seconds"] / 2 + outside.fates.effect_seconds(idempotency_key))
            repeatable = idempotency_key.startswith("mail:")
            found = outside.change(idempotency_key, f"receipt-{job['n']}", pid=pid, repeatable=repeatable)
            await self._sleep(job["seconds"] / 2)
        return found

    async def _find(self, key: str, *_: object) -> Any:
        """The answer takes its time, and may be out of date when it comes."""
        found = self._outside.find(key)
        await self._sleep(2.0)
        return NOT_DONE if found is None else Done(found)

    async def run_sleeper(self, ctx: Context, job: Job) -> str:
        await ctx.sleep(job["patience"] / 2)
        await ctx.sleep(job["patience"] / 3)
        return "awake"

    async def run_listener(self, ctx: Context, job: Job) -> Any:
        try:
            return await ctx.wait_signal("go", within=job["patience"])
        except SignalTimeout:
            return "silence"

    async def run_tooled(self, ctx: Context, job: Job) -> Any:
        asked = {"n": job["n"], "seconds": job["seconds"]}
        try:
            return await ctx.tool("calc", asked, timeout=job["patience"])
        except ToolFailed:
            return "no tool"

    async def run_outsider(self, ctx: Context, job: Job) -> Any:
        """Call a tool that no worker serves; people answer it, or do not."""
        try:
            first = await ctx.tool("ask", {"n": job["n"]}, timeout=job["patience"])
            return [first, await ctx.tool("ask", {"n": job["n"] + 1}, timeout=job["patience"])]
        except ToolFailed:
            return "no answer"

    async def run_caller(self, ctx: Context, job: Job) -> Any:
        def job_of(kind: str) -> Job:
            return {**job, "kind": kind, "steps": 2, "fails": 1}

        try:
            first = await ctx.call("job", job_of("plain"))
            rest = await ctx.gather(ctx.call("job", job_of("steps")), ctx.call("job", job_of("flaky")))
        except CallFailed:
            return "not all of them"
        return [first, *rest]


MIX: Final[dict[str, int]] = {
    "plain": 4,
    "flaky": 4,
    "limited": 3,
    "hopeless": 1,
    "stuck": 1,
    "steps": 5,
    "serial": 4,
    "beside": 3,
    "threaded": 2,
    "drafts": 1,
    "long": 2,
    "payer": 7,
    "sender": 5,
    "mailer": 3,
    "merger": 4,
    "hasty": 3,
    "outliving": 3,
    "declined": 3,
    "confused": 2,
    "guarded": 3,
    "sleeper": 3,
    "listener": 3,
    "tooled": 4,
    "outsider": 4,
    "caller": 4,
}
"""Relative frequency of each kind."""
STREAMED: Final[dict[str, int]] = {**MIX, "abroad": 12}
"""The same mix with a kind for foreign workers."""
OWN_AGENTS: Final = ("limited", "serial", "guarded", "threaded", "abroad")


@dataclass(frozen=True)
class TaskOrder:
    """One submission: its time, agent and payload."""

    at_seconds: float
    agent: str
    payload: Job
    options: dict[str, Any] = field(default_factory=dict)


def expected_result(job: Job) -> Any:
    """Return the result that a task must have if it succeeds, or `ANYTHING`."""
    n = job["n"]
    total = sum(n + number for number in range(job["steps"]))
    known: dict[str, Any] = {
        "plain": n * 2,
        "limited": n * 2,
        "abroad": n * 2,
        "flaky": "at last",
        "steps": total,
        "serial": total,
        "beside": 3 * n + 3,
        "threaded": n + 1,
        "long": "long",
        "sleeper": "awake",
        **dict.fromkeys(
            ("payer", "sender", "mailer", "merger", "guarded", "hasty", "outliving", "declined"),
            f"receipt-{n}",
        ),
        "confused": "refused",
    }
    return known.get(job["kind"], ANYTHING)


def choose_orders(
    dice: Dice, count: int, within_seconds: float, *, is_streamed: bool = False
) -> tuple[TaskOrder, ...]:
    """Choose a mix of submissions over a time, some of them in bursts."""
    mix = STREAMED if is_streamed else MIX
    kinds, weights = list(mix), list(mix.values())
    moments = sorted(_choose_moment(dice, within_seconds) for _ in range(count))
    return tuple(_choose_order(dice, n, at, dice.choices(kinds, weights)[0]) for n, at in enumerate(moments))


def _choose_moment(dice: Dice, within_seconds: float) -> float:
    """Choose a time; a third of them falls on a burst."""
    at = dice.random() * within_seconds
    return at - at % 600 if dice.happens(1 / 3) else at


def _choose_order(dice: Dice, n: int, at: float, kind: str) -> TaskOrder:
    job = {
        "kind": kind,
        "n": n,
        "seconds": round(dice.choice((0.05, 1, 4, 20)) * (0.5 + dice.random()), 3),
        "steps": dice.randint(2, 4),
        "fails": dice.choice((0, 1, 1, 2, 3, 9)),
        "patience": dice.choice((90, 300, 900)),
    }
    options: dict[str, Any] = {"key": f"order-{n}", "deadline": dice.choice((900, 1800, 2700))}
    if dice.happens(0.2):
        options["priority"] = dice.randint(-5, 5)
    if dice.happens(0.15):
        options["delay"] = dice.randint(10, 400)
    agent = kind if kind in OWN_AGENTS else "job"
    return TaskOrder(at, f"serial/k{n % 2}" if kind == "serial" else agent, job, options)
