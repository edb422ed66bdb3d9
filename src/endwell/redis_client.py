"""The client of a Redis or Valkey server, which streams, doorbell and relay share; redis-py does the work.

What redis-py does by default, and is switched off here:
- It repeats a failed command in silence. Every caller here decides itself when to try again.
- Its socket timeout would end a read that waits at the server (XREADGROUP BLOCK). Such reads have a client of
  their own, `blocking=True`, without a timeout; the caller limits them.
- It turns replies into Python objects, and their shapes differ from server to server. Replies stay raw.
- Its errors for a malformed URL may quote a part of the password. Ours show the URL mask_url.

A command whose answer is no longer wanted (a cancelled read) closes its connection: an answer that comes
later must not be taken for the answer to the next command. redis-py may also swallow a cancellation (it uses
`asyncio.wait_for`, which does so before Python 3.12): it is raised here, or a loop could not be ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from endwell.errors import UsageError
from endwell.settings import mask_url

ANSWER_SECONDS = 5.0
CONNECT_SECONDS = 3.0
CLIENT_NAME = "endwell"

Word = bytes | str | int | float


class Unreachable(Exception):
    """The server does not answer, or refuses the connection."""


class Refusal(Exception):
    """The server answered with an error; `code` is its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.split(" ", 1)[0].rstrip(":")


class Connect(Protocol):
    """Makes a client of the installation's Redis server."""

    def __call__(self, *, blocking: bool = False) -> RedisClient:
        """`blocking`: for reads that wait at the server, and therefore without a timeout."""


class RedisClient:
    """A client of one server. It connects when it is first used, and again after the connection was lost.

    The simulator has one of its own, with another `ask_all`.
    """

    def __init__(self, url: str, *, blocking: bool = False) -> None:
        self._library = _library_client(url, None if blocking else ANSWER_SECONDS)

    async def ask(self, *words: Word) -> Any:
        """Send one command and return the server's answer."""
        (answer,) = await self.ask_all((words,))
        return answer

    async def ask_all(self, commands: Sequence[Sequence[Word]], *, atomic: bool = False) -> list[Any]:
        """Send many commands in one round trip. All answers; the first refusal is raised.

        `atomic`: in one MULTI, so that all of them take place or none.
        """
        if atomic:
            *_, answers = await self.ask_all([("MULTI",), *commands, ("EXEC",)])
        else:
            answers = await self._send(commands)
        for answer in answers:
            if isinstance(answer, Exception):
                raise _as_refusal(answer)
        return list(answers)

    async def _send(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        from redis.exceptions import RedisError

        pool, task = self._library.connection_pool, asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        try:
            connection = await pool.get_connection()
            try:
                answers = await _exchange_commands(connection, commands)
            finally:
                await pool.release(connection)
        except (RedisError, OSError, TimeoutError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        if task is not None and task.cancelling() > cancels:
            raise asyncio.CancelledError
        return answers

    def new_subscription(self) -> Any:
        """A connection for SUBSCRIBE and PSUBSCRIBE, as redis-py's PubSub; for a blocking client."""
        return self._library.pubsub()

    async def remove_keys(self, prefix: str) -> None:
        """Remove every key with this prefix, so that a trial run leaves nothing on the server."""
        cursor: Any = "0"
        pattern = f"{literal_pattern(prefix)}*"
        while True:
            cursor, keys = await self.ask("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            if keys:
                await self.ask("DEL", *keys)
            if cursor == b"0":
                return

    async def close(self) -> None:
        """Close all connections."""
        from redis.exceptions import RedisError

        try:
            await self._library.aclose()
        except (RedisError, OSError, TimeoutError):
            return


def literal_pattern(text: str) -> str:
    """Escape the characters of a key that would mean something in a pattern."""
    return "".join(f"\\{character}" if character in "*?[]\\" else character for character in text)


async def _exchange_commands(connection: Any, commands: Sequence[Sequence[Word]]) -> list[Any]:
    """Write all commands at once and read their answers; errors of the server stand among them.

    hiredis packs the commands: redis-py's own packing takes longer than the server needs to execute them.
    """
    import hiredis
    from redis.exceptions import ResponseError

    pack_command: Any = hiredis.pack_command  # its stub knows only tuples of one word
    packed = b"".join(pack_command(tuple(words)) for words in commands)
    answers: list[Any] = []
    try:
        await connection.send_packed_command(packed)
        for _ in commands:
            try:
                answers.append(await connection.read_response())
            except ResponseError as error:
                answers.append(error)
    except BaseException:
        await connection.disconnect(nowait=True)  # answers that are still to come must not be read later
        raise
    return answers


def _as_refusal(error: Exception) -> Refusal:
    """redis-py drops the code ERR from what the server said."""
    text = str(error)
    return Refusal(text if text.partition(" ")[0].isupper() else f"ERR {text}")


def _library_client(url: str, answer_seconds: float | None) -> Any:
    try:
        import hiredis  # noqa: F401
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
            redis_connect_func=_log_in,
        )
    except ValueError:
        raise UsageError(f"{mask_url(url)} is not a Redis URL", hint="redis://host:6379/0") from None
    client.response_callbacks.clear()
    return client


async def _log_in(connection: Any) -> None:
    """Authenticate, then name the connection; a user without the right to CLIENT SETNAME is welcome too."""
    from redis.exceptions import ResponseError

    await connection.on_connect()
    await connection.send_command("CLIENT", "SETNAME", CLIENT_NAME, check_health=False)
    with suppress(ResponseError):
        await connection.read_response()
