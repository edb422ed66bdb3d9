"""The outbox: which endings go into a commit, and which are held until the store has them."""

from __future__ import annotations

from endwell.model import commands as c
from endwell.turn.endings import EndedTurn
from endwell.worker.outbox import Outbox


def ending(name: str, commands: int = 1) -> EndedTurn:
    made = tuple(
        c.HandBack(command_id=f"{name}.{number}", task_id=f"task-{name}", attempt_id=name, namespace="n")
        for number in range(commands)
    )
    return EndedTurn(f"task-{name}", name, made)


def filled(*endings: EndedTurn) -> Outbox:
    outbox = Outbox()
    for each in endings:
        outbox.add(each)
    return outbox


def test_a_commit_takes_as_many_whole_endings_as_fit() -> None:
    outbox = filled(ending("a", 2), ending("b", 2), ending("c"))
    assert [each.attempt_id for each in outbox.take(4)] == ["a", "b"]
    assert outbox.command_count == 1


def test_an_ending_larger_than_a_commit_is_taken_alone() -> None:
    outbox = filled(ending("a", 5), ending("b"))
    assert [each.attempt_id for each in outbox.take(4)] == ["a"]


def test_endings_of_a_commit_under_way_are_still_held() -> None:
    outbox = filled(ending("a"), ending("b"))
    batch = outbox.take(1)
    assert len(outbox) == 1
    assert set(outbox.held_attempts()) == {("task-a", "a"), ("task-b", "b")}
    outbox.put_back(batch, [])
    assert outbox.held_attempts() == (("task-b", "b"),)


def test_unsettled_endings_go_first_in_the_next_commit() -> None:
    outbox = filled(ending("a"), ending("b"))
    batch = outbox.take(1)
    outbox.put_back(batch, batch)
    assert [each.attempt_id for each in outbox.take(2)] == ["a", "b"]
