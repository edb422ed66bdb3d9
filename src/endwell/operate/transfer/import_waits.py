"""Check that the waits of a log add up: each is answered once, and none of a suspension is missing."""

from __future__ import annotations

from endwell.machine.evolve_rows import settled_calls
from endwell.model import facts as f
from endwell.model.task import Task, has_wait_rows, waits_of

_Key = tuple[str, str]


class OpenWaits:
    """The open waits of live tasks whose waits are rows of their own, by task."""

    def __init__(self) -> None:
        self._open: dict[_Key, set[str]] = {}
        self._announced: dict[_Key, int] = {}

    def take(self, key: _Key, before: Task | None, fact: f.Fact) -> None:
        """Check one more fact, with its task before it; ValueError says which wait does not fit."""
        if isinstance(fact, f.WaitsAdded):
            self._add(key, fact)
            return
        if left := self._announced.pop(key, 0):
            raise ValueError(f"{left} waits of its task's suspension are missing before it")
        if isinstance(fact, f.TaskSuspended):
            self._open.pop(key, None)
            if fact.count is not None:
                self._announced[key], self._open[key] = fact.count, set()
        elif isinstance(fact, f.WaitAnswered | f.WaitExpired) and before is not None:
            self._settle(key, before, fact)

    def _add(self, key: _Key, fact: f.WaitsAdded) -> None:
        known, left = self._open.get(key, set()), self._announced.get(key, 0)
        for wait in fact.waits:
            if wait.tool_call_id in known or not left:
                raise ValueError(f"its task waits for {wait.tool_call_id} already, or for no more calls")
            known.add(wait.tool_call_id)
            left -= 1
        self._announced[key] = left

    def _settle(self, key: _Key, before: Task, fact: f.WaitAnswered | f.WaitExpired) -> None:
        known = self._open.get(key, set())
        if not has_wait_rows(before):
            known = {wait.tool_call_id for wait in waits_of(before) if wait.is_open}
        for call in settled_calls(fact):
            if call not in known:
                raise ValueError(f"its task does not wait for {call}, or the call was answered before")
            if isinstance(fact, f.WaitAnswered):
                known.discard(call)

    def forget(self, key: _Key) -> None:
        """Drop the waits of a task that has ended."""
        self._open.pop(key, None)
        self._announced.pop(key, None)
