"""A universe: virtual time, seeded order, and processes that can be stopped and killed at any await."""

from __future__ import annotations

import asyncio

from endwell.runtime.universe import Universe, VirtualProcess
from endwell.runtime.virtual import VirtualRuntime, outside_of_loops, virtual_runtime

SECOND = 1_000_000


def process(universe: Universe, name: str = "one", pid: int = 1) -> VirtualProcess:
    return VirtualProcess(universe, name, pid)


def runtime(owner: VirtualProcess) -> VirtualRuntime:
    return virtual_runtime(owner, "seed", lambda pid: True)


def test_idle_time_is_skipped_and_timers_fire_in_order() -> None:
    universe = Universe(1)
    loop = process(universe).new_loop("main")
    seen: list[tuple[str, int]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, universe.elapsed_us // SECOND))

    loop.spawn(sleeper("late", 7200), "late")
    loop.spawn(sleeper("soon", 60), "soon")
    universe.run_until(3 * 3600 * SECOND)
    assert seen == [("soon", 60), ("late", 7200)]


def course(seed: int) -> list[str]:
    universe = Universe(seed)
    seen: list[str] = []

    async def walker(name: str) -> None:
        for number in range(5):
            seen.append(f"{name}{number}")
            await asyncio.sleep(0)

    for name in "abc":
        process(universe, name).new_loop("main").spawn(walker(name), name)
    universe.run_until(SECOND)
    return seen


def test_the_dice_decide_which_process_runs_next_and_the_same_dice_decide_the_same() -> None:
    assert course(1) == course(1)
    assert len({tuple(course(seed)) for seed in range(10)}) > 5
    assert [step for step in course(3) if step[0] == "a"] == ["a0", "a1", "a2", "a3", "a4"]


def test_nothing_of_a_killed_process_runs_again_not_even_its_finally() -> None:
    universe = Universe(1)
    victim = process(universe)
    loop = victim.new_loop("main")
    seen: list[str] = []

    async def worker() -> None:
        try:
            await asyncio.sleep(10)
            seen.append("went on")
        finally:
            seen.append("cleaned up")

    loop.spawn(worker(), "worker")
    universe.after(5, victim.kill)
    universe.run_until(60 * SECOND)
    assert seen == []


def test_a_paused_process_finds_everything_overdue_when_it_wakes() -> None:
    universe = Universe(1)
    sleeper = process(universe)
    loop = sleeper.new_loop("main")
    woke: list[int] = []

    async def tick() -> None:
        await asyncio.sleep(10)
        woke.append(universe.elapsed_us // SECOND)

    loop.spawn(tick(), "tick")
    universe.after(5, sleeper.pause)
    universe.after(100, sleeper.resume)
    universe.run_until(200 * SECOND)
    assert woke == [100]


def test_a_stalled_loop_does_not_hold_up_its_process_other_loops() -> None:
    universe = Universe(1)
    owner = process(universe)
    main, heart = owner.new_loop("main"), owner.new_loop("heart")
    beats: dict[str, int] = {"main": 0, "heart": 0}

    async def beat(name: str) -> None:
        while True:
            await asyncio.sleep(1)
            beats[name] += 1

    main.spawn(beat("main"), "main")
    heart.spawn(beat("heart"), "heart")
    main.stall(50.5)
    universe.run_until(50 * SECOND)
    assert beats["main"] == 0
    assert beats["heart"] >= 49
    for loop in owner.loops:
        loop.forget()


def test_a_function_in_a_thread_can_wait_for_the_loop() -> None:
    universe = Universe(1)
    owner = process(universe)
    own = runtime(owner)
    loop = owner.new_loop("main")

    async def answer() -> int:
        await asyncio.sleep(3600)
        return 42

    async def main() -> int:
        wait = own.waiter()
        return await own.in_thread(lambda: int(wait(answer())) + 1)

    task = loop.spawn(main(), "main")
    universe.run_until(2 * 3600 * SECOND)
    assert task.result() == 43


def test_an_attendant_is_called_on_a_loop_of_its_own_until_it_is_done() -> None:
    universe = Universe(1)
    owner = process(universe)
    own = runtime(owner)
    calls: list[int] = []
    ended: list[int] = []

    def attend() -> bool:
        calls.append(universe.elapsed_us)
        return len(calls) < 3

    async def main() -> None:
        attendant = own.attendant(attend, "attendant")
        for _ in range(5):
            attendant.call()
            await asyncio.sleep(1)
        await attendant.ended()
        ended.append(universe.elapsed_us // SECOND)

    owner.new_loop("main").spawn(main(), "main")
    universe.run_until(60 * SECOND)
    assert len(calls) == 3
    assert ended == [5]


async def test_a_universe_can_be_run_from_inside_a_real_event_loop() -> None:
    universe = Universe(1)
    loop = process(universe).new_loop("main")
    task = loop.spawn(asyncio.sleep(3600, "slept"), "sleep")
    outside_of_loops(lambda: universe.run_until(2 * 3600 * SECOND))
    assert task.result() == "slept"
    await asyncio.sleep(0)
    assert asyncio.current_task() is not None
