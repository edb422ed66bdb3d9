"""When a failed turn is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endwell.model.moments import SECOND
from endwell.policy.retry import (
    LONGEST_BACKOFF_SECONDS,
    GiveUp,
    RetryAt,
    RetryPolicy,
    after_failure,
    backoff,
    pack_policy,
    unpack_policy,
)

EXACT = RetryPolicy(jitter=0)


def verdict(policy: RetryPolicy, failures_before: int, *, retryable: bool = True) -> RetryAt | GiveUp:
    return after_failure(
        policy, retry_count=failures_before, retryable=retryable, code="broken", now=0, fraction=0.5
    )


@pytest.mark.covers("S4.29", "S4.36", "T18")
def test_three_retries_are_given_and_the_fourth_failure_is_the_last() -> None:
    verdicts = [verdict(RetryPolicy(), failures) for failures in range(4)]

    assert [type(each) for each in verdicts] == [RetryAt, RetryAt, RetryAt, GiveUp]
    assert [each.retry_count for each in verdicts] == [1, 2, 3, 4]
    assert verdicts[-1] == GiveUp("retries_exhausted", 4)


def test_no_retries_means_one_execution() -> None:
    assert verdict(RetryPolicy(max_retries=0), 0) == GiveUp("retries_exhausted", 1)


def test_an_error_that_is_not_retryable_gives_up_with_its_own_reason() -> None:
    assert verdict(RetryPolicy(), 0, retryable=False) == GiveUp("broken", 1)


def test_waiting_doubles_from_half_a_second() -> None:
    assert [backoff(EXACT, count, 0.5) / SECOND for count in (1, 2, 3, 4)] == [0.5, 1, 2, 4]


@pytest.mark.covers("S4.31")
def test_a_list_of_delays_is_followed_and_its_last_one_repeats() -> None:
    policy = RetryPolicy(delays=(60, 300, 900), jitter=0)

    assert [backoff(policy, count, 0.5) / SECOND for count in (1, 2, 3, 4)] == [60, 300, 900, 900]


def test_a_wait_that_was_asked_for_replaces_the_usual_one() -> None:
    asked = after_failure(
        EXACT, retry_count=0, retryable=True, code="x", now=7, fraction=0.5, asked_after=30 * SECOND
    )

    assert asked == RetryAt(7 + 30 * SECOND, 1)


@given(count=st.integers(1, 10_000), fraction=st.floats(0, 1, exclude_max=True))
def test_jitter_spreads_by_a_fifth_and_never_beyond_the_longest_wait(count: int, fraction: float) -> None:
    longest = int(LONGEST_BACKOFF_SECONDS * SECOND)
    exact = backoff(EXACT, count, 0.5)
    waited = backoff(RetryPolicy(), count, fraction)

    assert int(exact * 0.8) - 1 <= waited <= min(int(exact * 1.2) + 1, longest)


@given(st.builds(RetryPolicy, max_retries=st.integers(0, 99), delays=st.lists(st.floats(0, 9)).map(tuple)))
def test_a_policy_survives_its_column(policy: RetryPolicy) -> None:
    assert unpack_policy(pack_policy(policy), EXACT) == policy


def test_a_task_without_a_policy_uses_the_installations() -> None:
    assert unpack_policy(None, EXACT) is EXACT


@pytest.mark.parametrize(
    ("code", "reason"),
    [("api_failure", "api_retries_exhausted"), ("agent_asked_for_retry", "continuations_exhausted")],
)
def test_the_last_retry_of_some_failures_has_a_reason_of_its_own(code: str, reason: str) -> None:
    last = after_failure(EXACT, retry_count=3, retryable=True, code=code, now=0, fraction=0.5)

    assert last == GiveUp(reason, 4)


def test_jitter_goes_as_far_down_as_up() -> None:
    policy = RetryPolicy(base_seconds=10, jitter=0.2)

    assert [backoff(policy, 1, fraction) for fraction in (0.0, 0.5, 1.0)] == [
        8 * SECOND,
        10 * SECOND,
        12 * SECOND,
    ]


def test_no_wait_is_longer_than_a_day() -> None:
    assert LONGEST_BACKOFF_SECONDS == 86_400
    assert backoff(EXACT, 5_000, 0.5) == 86_400 * SECOND


def test_waiting_grows_for_sixty_retries() -> None:
    slow = RetryPolicy(base_seconds=1, multiplier=1.01, jitter=0)

    waits = [backoff(slow, count, 0.5) for count in (60, 61, 62, 63)]
    assert waits == [int(1.01**times * SECOND) for times in (59, 60, 60, 60)]
