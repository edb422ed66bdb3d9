"""Tools and models that answer by a script."""

from __future__ import annotations

from typing import Any, Self

from endwell.client import Client
from endwell.errors import EndwellError
from endwell.model import content
from endwell.model.card import Card
from endwell.runtime.base import Runtime


class ScriptedTool:
    """Answers calls in the order of its script; the last line answers all further calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[Any] = []
        self._lines: list[tuple[str, Any, float]] = []

    def returns(self, value: Any, *, after_seconds: float = 0.0) -> Self:
        """Let the next call return this value; a function receives the call's arguments."""
        self._lines.append(("returns", value, after_seconds))
        return self

    def fails(self, error: Any = "it failed", *, after_seconds: float = 0.0) -> Self:
        """Let the next call fail."""
        self._lines.append(("fails", error, after_seconds))
        return self

    def answers_twice(self, first: Any, second: Any) -> Self:
        """Answer the next call twice; only the first answer may count."""
        self._lines.append(("twice", (first, second), 0.0))
        return self

    def never_answers(self) -> Self:
        """Give the next call no answer."""
        self._lines.append(("silent", None, 0.0))
        return self

    async def answer(self, client: Client, runtime: Runtime, call_id: str, card: Card) -> None:
        """Answer a call with the next line of the script."""
        arguments = content.decode_stored(card.content)["arguments"]
        self.calls.append(arguments)
        what, value, seconds = self._next_line()
        await runtime.sleep(seconds)
        value = value(arguments) if callable(value) else value
        try:
            await self._give_answer(client, call_id, what, value)
        except EndwellError as refusal:
            if what != "twice":
                raise refusal

    def _next_line(self) -> tuple[str, Any, float]:
        if not self._lines:
            return ("silent", None, 0.0)
        return self._lines.pop(0) if len(self._lines) > 1 else self._lines[0]

    async def _give_answer(self, client: Client, call_id: str, what: str, value: Any) -> None:
        if what == "returns":
            await client.answer(call_id, value)
        elif what == "fails":
            await client.fail_call(call_id, value)
        elif what == "twice":
            for one in value:
                await client.answer(call_id, one)


class ScriptedModel:
    """A function that returns the lines of its script, call by call; it raises those that are exceptions."""

    def __init__(self, *lines: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._lines = list(lines)

    def __call__(self, *arguments: Any) -> Any:
        self.calls.append(arguments)
        if not self._lines:
            raise AssertionError(f"the script has no line for call {len(self.calls)}")
        line = self._lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line
