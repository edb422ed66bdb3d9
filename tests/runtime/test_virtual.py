"""Tests of virtual time: seeded order, and processes that are stopped and killed at any await."""

from __future__ import annotations

import asyncio

from endwell.runtime.virtual.runtime import VirtualRuntime, outside_of_loops, virtual_runtime
from endwell.runtime.virtual.scheduler import VirtualProcess, VirtualScheduler

SECOND = 1_000_000


def process(scheduler: VirtualScheduler, name: str = "one", pid: int = 1) -> VirtualProcess:
    return VirtualProcess(scheduler, name, pid)


def runtime(owner: VirtualProcess) -> VirtualRuntime:
    return virtual_runtime(owner, "seed", lambda pid: True)


def test_idle_time_is_skipped_and_timers_fire_in_order() -> None:
    scheduler = VirtualScheduler(1)
    loop = process(scheduler).new_loop("main")
    seen: list[tuple[str, int]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, scheduler.elapsed_us // SECOND))

    loop.spawn(sleeper("late", 7200), "late")
    loop.spawn(sleeper("soon", 60), "soon")
    scheduler.run_until(3 * 3600 * SECOND)
    assert seen == [("soon", 60), ("late", 7200)]


def course(seed: int) -> list[str]:
    scheduler = VirtualScheduler(seed)
    seen: list[str] = []

    async def walker(name: str) -> None:
        for number in range(5):
            seen.append(f"{name}{number}")
            await asyncio.sleep(0)

    for name in "abc":
        process(scheduler, name).new_loop("main").spawn(walker(name), name)
    scheduler.run_until(SECOND)
    return seen


def test_the_dice_decide_which_process_runs_next_and_the_same_dice_decide_the_same() -> None:
    assert course(1) == course(1)
    assert len({tuple(course(seed)) for seed in range(10)}) > 5
    assert [step for step in course(3) if step[0] == "a"] == ["a0", "a1", "a2", "a3", "a4"]


def test_nothing_of_a_killed_process_runs_again_not_even_its_finally() -> None:
    scheduler = VirtualScheduler(1)
    victim = process(scheduler)
    loop = victim.new_loop("main")
    seen: list[str] = []

    async def worker() -> None:
        try:
            await asyncio.sleep(10)
            seen.append("went on")
        finally:
            seen.append("cleaned up")

    loop.spawn(worker(), "worker")
    scheduler.run_after(5, victim.kill)
    scheduler.run_until(60 * SECOND)
    assert seen == []


def test_a_paused_process_finds_everything_overdue_when_it_wakes() -> None:
    scheduler = VirtualScheduler(1)
    sleeper = process(scheduler)
    loop = sleeper.new_loop("main")
    woke: list[int] = []

    async def tick() -> None:
        await asyncio.sleep(10)
        woke.append(scheduler.elapsed_us // SECOND)

    loop.spawn(tick(), "tick")
    scheduler.run_after(5, sleeper.pause)
    scheduler.run_after(100, sleeper.resume)
    scheduler.run_until(200 * SECOND)
    assert woke == [100]


def test_a_stalled_loop_does_not_hold_up_its_process_other_loops() -> None:
    scheduler = VirtualScheduler(1)
    owner = process(scheduler)
    main, heart = owner.new_loop("main"), owner.new_loop("heart")
    beats: dict[str, int] = {"main": 0, "heart": 0}

    async def beat(name: str) -> None:
        while True:
            await asyncio.sleep(1)
            beats[name] += 1

    main.spawn(beat("main"), "main")
    heart.spawn(beat("heart"), "heart")
    main.stall_for(50.5)
    scheduler.run_until(50 * SECOND)
    assert beats["main"] == 0
    assert beats["heart"] >= 49
    for loop in owner.loops:
        loop.forget()


def test_a_function_in_a_thread_can_wait_for_the_loop() -> None:
    scheduler = VirtualScheduler(1)
    owner = process(scheduler)
    own = runtime(owner)
    loop = owner.new_loop("main")

    async def answer() -> int:
        await asyncio.sleep(3600)
        return 42

    async def main() -> int:
        wait = own.make_waiter()
        return await own.in_thread(lambda: int(wait(answer())) + 1)

    task = loop.spawn(main(), "main")
    scheduler.run_until(2 * 3600 * SECOND)
    assert task.result() == 43


def test_an_attendant_is_called_on_a_loop_of_its_own_until_it_is_done() -> None:
    scheduler = VirtualScheduler(1)
    owner = process(scheduler)
    own = runtime(owner)
    calls: list[int] = []
    ended: list[int] = []

    def attend() -> bool:
        calls.append(scheduler.elapsed_us)
        return len(calls) < 3

    async def main() -> None:
        attendant = own.start_attendant(attend, "attendant")
        for _ in range(5):
            attendant.call()
            await asyncio.sleep(1)
        await attendant.wait_ended()
        ended.append(scheduler.elapsed_us // SECOND)

    owner.new_loop("main").spawn(main(), "main")
    scheduler.run_until(60 * SECOND)
    assert len(calls) == 3
    assert ended == [5]


async def test_a_scheduler_can_run_inside_a_real_event_loop() -> None:
    scheduler = VirtualScheduler(1)
    loop = process(scheduler).new_loop("main")
    task = loop.spawn(asyncio.sleep(3600, "slept"), "sleep")
    outside_of_loops(lambda: scheduler.run_until(2 * 3600 * SECOND))
    assert task.result() == "slept"
    await asyncio.sleep(0)
    assert asyncio.current_task() is not None
