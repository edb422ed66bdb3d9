"""One follower of the log at a time; a replaced follower moves nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from endwell.errors import Refused
from endwell.machine.cursors import move_cursor, take_cursor
from endwell.model.commands import MoveCursor, TakeCursor
from endwell.model.cursor import Cursor

NOW = 1000
HELD = Cursor(
    namespace="n",
    name="relay",
    position="e5",
    holder="one",
    fence=3,
    lease_until=1100,
    trouble="no network",
    updated_at=900,
)


def taking(holder: str) -> TakeCursor:
    return TakeCursor(command_id="c", namespace="n", name="relay", holder=holder, lease=50, start="e2")


def moving(**options: Any) -> MoveCursor:
    options = {"holder": "one", "fence": 3, "position": "e9", "lease": 60, **options}
    return MoveCursor(command_id="c", namespace="n", name="relay", **options)


def test_a_new_cursor_starts_where_its_first_holder_says() -> None:
    assert take_cursor(None, taking("one"), NOW) == Cursor(
        namespace="n",
        name="relay",
        position="e2",
        holder="one",
        fence=1,
        lease_until=NOW + 50,
        trouble=None,
        updated_at=NOW,
    )


def test_a_holder_takes_its_cursor_again_under_the_same_fence() -> None:
    for now in (NOW, 1100, 1200):
        again = replace(HELD, lease_until=now + 50, updated_at=now)
        assert take_cursor(HELD, taking("one"), now) == again


@pytest.mark.parametrize(("now", "is_free"), [(1099, False), (1100, True), (1101, True)])
def test_another_waits_until_the_lease_has_lapsed_and_gets_a_new_fence(now: int, is_free: bool) -> None:
    found = take_cursor(HELD, taking("two"), now)

    if is_free:
        assert found == replace(HELD, holder="two", fence=4, lease_until=now + 50, updated_at=now)
    else:
        assert isinstance(found, Refused)
        assert found.code == "cursor_held"


def test_a_holder_moves_its_cursor_and_reports_trouble() -> None:
    moved = replace(HELD, position="e9", lease_until=NOW + 60, trouble=None, updated_at=NOW)

    assert move_cursor(HELD, moving(), NOW) == moved
    assert move_cursor(HELD, moving(trouble="no answer"), NOW) == replace(moved, trouble="no answer")
    assert move_cursor(HELD, moving(lease=0), NOW) == replace(moved, lease_until=NOW)


@pytest.mark.parametrize(
    ("cursor", "command"),
    [(None, moving()), (HELD, moving(holder="two")), (HELD, moving(fence=2)), (HELD, moving(fence=4))],
)
def test_a_cursor_is_moved_by_its_holder_only(cursor: Cursor | None, command: MoveCursor) -> None:
    found = move_cursor(cursor, command, NOW)

    assert isinstance(found, Refused)
    assert found.code == "cursor_lost"
