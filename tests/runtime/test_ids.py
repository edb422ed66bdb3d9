"""Ids sort by time, never repeat, and can be reproduced from a seed."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

from endwell.runtime import Ids, SeededIds, SystemClock, SystemIds
from tests.support.manual_clock import ManualClock

ID = re.compile(r"[0-7][0-9a-hjkmnp-tv-z]{25}")
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def milliseconds_in(made: str) -> int:
    value = 0
    for letter in made[:10]:
        value = value * 32 + ALPHABET.index(letter)
    return value


def take(ids: Ids, count: int) -> list[str]:
    return [ids.new() for _ in range(count)]


def test_an_id_is_26_crockford_characters() -> None:
    assert all(ID.fullmatch(made) for made in take(SystemIds(SystemClock()), 100))


def test_an_id_begins_with_its_millisecond() -> None:
    clock = ManualClock(1_700_000_000_123_456)
    assert milliseconds_in(SystemIds(clock).new()) == 1_700_000_000_123


def test_ids_rise_strictly_within_a_millisecond_and_across_them() -> None:
    made = take(SystemIds(SystemClock()), 50_000)
    assert made == sorted(set(made))


def test_ids_keep_rising_when_the_clock_is_set_back() -> None:
    clock = ManualClock(2_000_000_000)
    ids = SystemIds(clock)
    made = take(ids, 3)
    clock.set(1_000_000_000)
    made += take(ids, 3)
    clock.set(-5_000_000)
    made += take(ids, 3)
    assert made == sorted(set(made))


def test_threads_never_share_an_id() -> None:
    ids = SystemIds(SystemClock())
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda _: take(ids, 2000), range(8)))
    assert len({made for batch in batches for made in batch}) == 16_000
    assert all(batch == sorted(batch) for batch in batches)


def test_two_processes_worth_of_ids_differ_in_the_same_millisecond() -> None:
    clock = ManualClock(1_000_000)
    assert not set(take(SystemIds(clock), 1000)) & set(take(SystemIds(clock), 1000))


def test_a_forked_child_makes_other_ids_and_fractions() -> None:
    ids = SystemIds(ManualClock(1_000_000))
    ids.new()
    mine, theirs = _after_a_fork(lambda: f"{ids.new()} {ids.fraction()}")
    assert mine.split()[0] != theirs.split()[0]
    assert mine.split()[1] != theirs.split()[1]


def _after_a_fork(answer) -> tuple[str, str]:  # type: ignore[no-untyped-def]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, answer().encode())
        os._exit(0)
    os.waitpid(child, 0)
    return answer(), os.read(read, 1000).decode()


def test_fractions_lie_in_zero_to_one() -> None:
    ids = SystemIds(SystemClock())
    assert all(0 <= ids.fraction() < 1 for _ in range(1000))


def test_a_seed_gives_the_same_ids_and_fractions_again() -> None:
    first, second = SeededIds(7), SeededIds(7)
    assert take(first, 100) == take(second, 100)
    assert first.fraction() == second.fraction()


def test_seeded_ids_rise_and_have_the_usual_shape() -> None:
    made = take(SeededIds(1), 1000)
    assert made == sorted(set(made))
    assert all(ID.fullmatch(one) for one in made)


def test_other_seeds_give_other_ids() -> None:
    assert not set(take(SeededIds(1), 100)) & set(take(SeededIds(2), 100))


def test_seeded_ids_follow_a_clock_if_they_have_one() -> None:
    clock = ManualClock(9_000_000)
    ids = SeededIds(3, clock)
    assert milliseconds_in(ids.new()) == 9000
    clock.advance(1)
    assert milliseconds_in(ids.new()) == 10_000
