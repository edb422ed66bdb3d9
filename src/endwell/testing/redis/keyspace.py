"""The keys of the simulated server, and what every command needs of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from endwell.redis_client import Refusal, Word
from endwell.testing.redis.stream import BlockedRead, Stream

Args = list[bytes]
Command = Callable[["KeySpace", Args], Any]
T = TypeVar("T", Stream, dict[bytes, bytes], bytes)

LONGEST_TTL_MS: Final = 2**53
SYNTAX: Final = "ERR syntax error"
WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"


class KeySpace:
    """Executes commands on keys in memory. `clock` gives milliseconds, and belongs to the server alone.

    `accepts` is called for every new entry; if it says no, the entry is lost although its id was returned.
    """

    def __init__(self, clock: Callable[[], int], commands: Mapping[str, Command]) -> None:
        self._clock = clock
        self._commands = commands
        self.offset_ms = 0
        self.keys: dict[bytes, Any] = {}
        self.expiry: dict[bytes, int] = {}
        self.waiting: list[BlockedRead] = []
        self.accepts: Callable[[bytes, list[bytes]], bool] = lambda key, fields: True

    @property
    def now_ms(self) -> int:
        return self._clock() + self.offset_ms

    def execute(self, words: Sequence[Word]) -> Any:
        """The answer; a Refusal is raised. A read that would wait gives `BlockedRead`."""
        args = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        name = args[0].upper().decode()
        if name not in self._commands:
            raise Refusal(f"ERR unknown command '{name}'")
        try:
            return self._commands[name](self, args[1:])
        except IndexError:
            raise Refusal(f"ERR wrong number of arguments for '{name.lower()}' command") from None

    def execute_all(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """MULTI and EXEC: no other client comes between, and a failure does not undo the others."""
        for words in commands:
            if str(words[0]).upper() not in self._commands:
                raise Refusal(f"ERR unknown command '{words[0]!s}'")
        return [self.answer(words) for words in commands]

    def answer(self, words: Sequence[Word]) -> Any:
        """As `execute`, with a refusal as an answer like any other."""
        try:
            return self.execute(words)
        except Refusal as refusal:
            return refusal

    def find(self, key: bytes, kind: type[T]) -> T | None:
        """The value of a key, unless it has expired."""
        value = self.keys.get(key) if self.has_key(key) else None
        if value is not None and not isinstance(value, kind):
            raise Refusal(WRONG_TYPE)
        return value

    def find_stream(self, key: bytes) -> Stream | None:
        """The stream of a key."""
        return self.find(key, Stream)

    def has_key(self, key: bytes) -> bool:
        """Whether the key exists; removes it if it has expired."""
        if self.expiry and self.expiry.get(key, LONGEST_TTL_MS) <= self.now_ms:
            self.drop(key)
        return key in self.keys

    def drop(self, key: bytes) -> bool:
        """Remove a key; reads that wait for it are answered."""
        self.expiry.pop(key, None)
        is_there = self.keys.pop(key, None) is not None
        if is_there:
            self.wake(key)
        return is_there

    def wake(self, key: bytes) -> None:
        """Try the reads that wait for this stream again, in the order in which they came."""
        for waiting in [each for each in self.waiting if each.key == key]:
            if waiting.is_over():
                self.waiting.remove(waiting)
                continue
            answer = self.answer(waiting.words)
            if not isinstance(answer, BlockedRead):
                self.waiting.remove(waiting)
                waiting.give_answer(answer)

    def remove_all(self) -> None:
        """Lose everything."""
        keys = list(self.keys)
        self.keys.clear()
        self.expiry.clear()
        for key in keys:
            self.wake(key)

    def snapshot(self) -> tuple[dict[bytes, Any], dict[bytes, int]]:
        """Everything at this moment."""
        return copy.deepcopy((self.keys, self.expiry))

    def restore(self, snapshot: tuple[dict[bytes, Any], dict[bytes, int]]) -> None:
        """As when a replica takes over that lags behind: new keys are gone, removed ones are back."""
        self.keys, self.expiry = copy.deepcopy(snapshot)
        for key in {waiting.key: None for waiting in self.waiting}:
            self.wake(key)


def parse_number(word: bytes) -> int:
    """A whole number as it was sent."""
    try:
        return int(word)
    except ValueError:
        raise Refusal("ERR value is not an integer or out of range") from None
