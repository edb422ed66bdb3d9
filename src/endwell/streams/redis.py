"""Connections to a Redis server: they answer as it does, and fail at once instead of trying in silence.

redis-py gives a command five seconds and repeats it without a word; a blocking read would never return.
Reads that block therefore have a connection of their own without such a limit, and every caller here decides
itself when to try again. Replies are left as they come, because their shapes differ from server to server.
A plain address is spoken to without redis-py (`runtime/redis_line.py`): a third of the time for each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from endwell.errors import UsageError
from endwell.runtime.redis_line import Address, LineLost, RedisLine, error_type, has_hiredis, plain_address
from endwell.runtime.redis_line import Word as Word
from endwell.settings import masked

ANSWER_SECONDS = 5.0
CONNECT_SECONDS = 3.0
AWAY = ("LOADING", "NOAUTH", "WRONGPASS", "ERR max number of clients")
"""What a server says that is there, but not for us or not yet."""


class Unreachable(Exception):
    """The server does not answer, or not in order."""


class Refusal(Exception):
    """The server answered, with an error; `code` is its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.split(" ", 1)[0].rstrip(":")


class RedisClient(Protocol):
    """A connection to a server, as everybody here uses one."""

    async def ask(self, *words: Word) -> Any:
        """The server's answer."""

    async def ask_all(self, commands: Sequence[Sequence[Word]], *, atomic: bool = False) -> list[Any]:
        """All answers, or the first refusal. `atomic`: all of them take place, or none."""

    async def close(self) -> None:
        """Let go, whatever state it is in."""


class Connect(Protocol):
    """How a line is had; whoever wants another server, or one that is none, passes another."""

    def __call__(self, *, blocking: bool = False) -> RedisClient:
        """`blocking`: for reads that wait at the server, and therefore without a limit of its own."""


class RedisConnection:
    """One server. `ask` sends one command, `ask_all` many with one round trip."""

    def __init__(self, url: str, *, blocking: bool = False) -> None:
        seconds = None if blocking else ANSWER_SECONDS
        address = plain_address(url)
        library = LibraryConnection(url, seconds)  # which also says what is wrong with a URL
        self._way: PlainConnection | LibraryConnection = library
        if address is not None and has_hiredis():
            self._way = PlainConnection(address, seconds)

    async def ask(self, *words: Word) -> Any:
        """The server's answer."""
        (answer,) = await self._way.answers((words,))
        if isinstance(answer, Refusal):
            raise answer
        return answer

    async def ask_all(self, commands: Sequence[Sequence[Word]], *, atomic: bool = False) -> list[Any]:
        """All answers, or the first refusal. `atomic`: all of them take place, or none."""
        if atomic:
            *_, answers = await self.ask_all([("MULTI",), *commands, ("EXEC",)])
            for answer in answers:
                if self._way.is_error(answer):
                    raise _refusal(answer)
            return list(answers)
        answers = await self._way.answers(commands)
        for answer in answers:
            if isinstance(answer, Refusal):
                raise answer
        return answers

    async def remove_keys(self, prefix: str) -> None:
        """Everything whose name begins so; for whoever tried something out and leaves nothing behind."""
        cursor: Any = "0"
        while True:
            pattern = "".join(f"\\{each}" if each in "*?[]\\" else each for each in prefix)
            cursor, keys = await self.ask("SCAN", cursor, "MATCH", f"{pattern}*", "COUNT", 1000)
            if keys:
                await self.ask("DEL", *keys)
            if cursor == b"0":
                return

    async def close(self) -> None:
        """Let go, whatever state it is in."""
        await self._way.close()


class PlainConnection:
    """Nothing but a socket."""

    def __init__(self, address: Address, seconds: float | None) -> None:
        self._line = RedisLine(address, seconds=seconds)
        self._errors = error_type()

    def is_error(self, answer: Any) -> bool:
        return isinstance(answer, self._errors)

    async def answers(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Refusals stand among them."""
        try:
            answers = await self._line.ask(commands)
        except LineLost as error:
            raise Unreachable(str(error)) from error
        return [_told(answer) if isinstance(answer, self._errors) else answer for answer in answers]

    async def close(self) -> None:
        self._line.close()


def _told(error: Exception) -> Refusal:
    if str(error).startswith(AWAY):
        raise Unreachable(str(error))
    return _refusal(error)


class LibraryConnection:
    """By redis-py: TLS, Unix sockets, and all its options."""

    def __init__(self, url: str, seconds: float | None) -> None:
        self._client = _client(url, seconds)
        self._errors = _errors()
        self._packed = _packer()

    def is_error(self, answer: Any) -> bool:
        return isinstance(answer, self._errors.ResponseError)

    async def answers(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Refusals stand among them."""
        try:
            line = await self._client.connection_pool.get_connection()
            try:
                return await self._answers(line, commands)
            finally:
                await self._client.connection_pool.release(line)
        except (self._errors.RedisError, OSError, TimeoutError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error

    async def _answers(self, line: Any, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Packed in C where possible: done word by word, it would cost more than the server takes."""
        answers: list[Any] = []
        try:
            await line.send_packed_command(b"".join(self._packed(tuple(words)) for words in commands))
            for _ in commands:
                try:
                    answers.append(await line.read_response())
                except self._errors.ResponseError as error:
                    answers.append(_refusal(error))
        except BaseException:
            await line.disconnect(nowait=True)  # what is still to come belongs to nobody
            raise
        return answers

    async def close(self) -> None:
        try:
            await self._client.aclose()
        except (self._errors.RedisError, OSError, TimeoutError):
            return


def _refusal(error: Exception) -> Refusal:
    """redis-py takes the plain code away from what the server said."""
    text = str(error)
    return Refusal(text if text.partition(" ")[0].isupper() else f"ERR {text}")


def _errors() -> Any:
    from redis import exceptions

    return exceptions


def _packer() -> Callable[[tuple[Word, ...]], bytes]:
    """hiredis does it in C; without it the same in Python."""
    try:
        from hiredis import pack_command
    except ImportError:
        return _pack
    packed: Any = pack_command  # its stub knows only tuples of one word
    return cast("Callable[[tuple[Word, ...]], bytes]", packed)


def _pack(words: tuple[Word, ...]) -> bytes:
    parts = [each if isinstance(each, bytes) else str(each).encode() for each in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def _client(url: str, answer_seconds: float | None) -> Any:
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        raise UsageError(
            "Redis needs the redis package", code="missing_package", hint='pip install "endwell[redis]"'
        ) from None
    try:
        client = Redis.from_url(
            url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=answer_seconds,
            socket_connect_timeout=CONNECT_SECONDS,
            client_name="endwell",
        )
    except ValueError:  # without its words: they may quote a part of the password
        raise UsageError(f"{masked(url)} is not a Redis URL", hint="redis://host:6379/0") from None
    client.response_callbacks.clear()
    return client
