"""Messages as HTTP requests: one CloudEvent each, or a batch; signed if there is a secret.

The signature is that of the Standard Webhooks scheme: `webhook-id`, `webhook-timestamp`, and HMAC-SHA256 over
both and the body. Redirects are not followed: messages go only to the URL of the settings.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import io
import re
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from endwell.errors import BadSetting
from endwell.model.content import clean_text
from endwell.model.moments import SECOND
from endwell.pmo.relay.messages import Outgoing
from endwell.pmo.relay.sink import SinkError
from endwell.runtime.base import Runtime

ONE: Final = "application/cloudevents+json; charset=utf-8"
MANY: Final = "application/cloudevents-batch+json; charset=utf-8"
_READ_LIMIT: Final = 65536
_SHOWN_LIMIT: Final = 300
_ODD_PREFIX: Final = re.compile(r"(?!(?-i:whsec_))\s*whsec[\W_]", re.IGNORECASE)
SHORTEST_SECRET: Final = 8
"""Fewest bytes of a secret; 24 and more are usual."""


class Webhook:
    """POSTs to one URL, in a thread, one request at a time, so that the order is kept."""

    def __init__(
        self, url: str, *, runtime: Runtime, secret: str = "", batch: int = 1, timeout_seconds: float = 10.0
    ) -> None:
        self._parts = _checked_url(url)
        self.shown = f"{self._parts.scheme}://{self._parts.hostname}"
        self._runtime = runtime
        self._secret = _signing_key(secret)
        self._batch = batch
        self._timeout = timeout_seconds
        self._connection: http.client.HTTPConnection | None = None

    async def send(self, messages: Sequence[Outgoing]) -> None:
        for start in range(0, len(messages), self._batch):
            try:
                await self._runtime.in_thread(self._post_request, messages[start : start + self._batch])
            except (OSError, ValueError, http.client.HTTPException) as error:  # an answer may be any bytes
                self._close_connection()
                said = clean_text(str(error).strip() or type(error).__name__, _SHOWN_LIMIT)
                raise SinkError(f"{self.shown}: {said}", sent=start) from error
            except SinkError as error:
                error.sent = start
                error.at = start if self._batch == 1 else None
                raise

    def _post_request(self, messages: Sequence[Outgoing]) -> None:
        body = messages[0].body if self._batch == 1 else b"[" + b",".join(m.body for m in messages) + b"]"
        deadline = self._runtime.clock.monotonic() + self._timeout
        connection = self._connect(deadline)
        target = self._parts.path or "/"
        connection.request(
            "POST",
            f"{target}?{self._parts.query}" if self._parts.query else target,
            body,
            self._make_headers(messages[0].id, body),
        )
        response = connection.getresponse()
        response.read(_READ_LIMIT)
        if not response.isclosed():  # do not read an endless answer
            self._close_connection()
        if not 200 <= response.status < 300:
            raise SinkError(f"{self.shown} answered {response.status} to {messages[0].id}")

    def _make_headers(self, message_id: str, body: bytes) -> dict[str, str]:
        headers = {"Content-Type": ONE if self._batch == 1 else MANY, "User-Agent": "endwell"}
        if self._parts.username is not None:
            login = f"{unquote(self._parts.username)}:{unquote(self._parts.password or '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        if self._secret:
            stamp = str(self._runtime.clock.now_us() // SECOND)
            headers |= {"webhook-id": message_id, "webhook-timestamp": stamp}
            headers["webhook-signature"] = sign_message(self._secret, message_id, stamp, body)
        return headers

    def _connect(self, deadline: float) -> http.client.HTTPConnection:
        """A connection whose waits all end at one deadline, for the request and the answer together."""
        if self._connection is None:
            kind = (
                http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            )
            self._connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout)
        connection, clock = self._connection, self._runtime.clock

        def seconds_left() -> float:
            left = deadline - clock.monotonic()
            if left <= 0:
                raise TimeoutError(f"no whole answer within {self._timeout:g} s")
            return left

        if connection.sock is None:
            connection.timeout = seconds_left()
            connection.connect()
        connection.sock.settimeout(seconds_left())
        connection.response_class = partial(_timed_response, seconds_left)  # type: ignore[assignment]
        return connection

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        self._close_connection()


class _TimedReader(io.RawIOBase):
    """Reads a socket until a deadline, even if the answer drips."""

    def __init__(self, sock: socket.socket, seconds_left: Callable[[], float]) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._seconds_left = seconds_left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._seconds_left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedSocket:
    """The part of a socket that an HTTP response uses."""

    def __init__(self, sock: socket.socket, seconds_left: Callable[[], float]) -> None:
        self._reader = _TimedReader(sock, seconds_left)

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self._reader)


def _timed_response(
    seconds_left: Callable[[], float], sock: socket.socket, **options: Any
) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(_TimedSocket(sock, seconds_left), **options)  # type: ignore[arg-type]


def sign_message(key: bytes, message_id: str, stamp: str, body: bytes) -> str:
    """The signature; a receiver that knows the secret computes the same."""
    signed = f"{message_id}.{stamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def _signing_key(secret: str) -> bytes:
    """The key of a secret: base64 after `whsec_`, or the text itself."""
    if _ODD_PREFIX.match(secret):
        raise BadSetting(
            "relay.secret begins with something like whsec_, but not exactly", field="relay.secret"
        )
    try:
        key = secret.encode()
        if secret.startswith("whsec_"):
            key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except UnicodeEncodeError:
        raise BadSetting("relay.secret is not UTF-8", field="relay.secret") from None
    except ValueError:
        problem = "relay.secret begins with whsec_, but is not base64"
        raise BadSetting(problem, field="relay.secret") from None
    if secret and len(key.strip()) < SHORTEST_SECRET:
        raise BadSetting(
            f"relay.secret is too short to sign with: it needs at least {SHORTEST_SECRET} bytes",
            hint="make one with: openssl rand -base64 32, and write whsec_ before it",
            field="relay.secret",
        )
    return key


def _checked_url(url: str) -> SplitResult:
    parts = _split_url(url)
    if parts is None or not url.isascii() or not url.isprintable() or " " in url:
        raise BadSetting(
            "relay.url must be an http:// or https:// URL for a webhook",
            hint="write http or https, the host and the path, and percent-encode what is not ASCII",
            field="relay.url",
        )
    return parts


def _split_url(url: str) -> SplitResult | None:
    """The parts of the URL, if a request can be sent there. An error of the library might show a password."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:
        return None
    return parts if is_good else None
