"""Messages as HTTP requests: one CloudEvent each, or several as a batch, signed if there is a secret.

The signature is that of the Standard Webhooks scheme: `webhook-id`, `webhook-timestamp`, and HMAC-SHA256 over
both and the body. Redirects are not followed: a message goes where the settings say, or nowhere.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

from endwell.errors import BadSetting
from endwell.pmo.relay.messages import Outgoing
from endwell.pmo.relay.sink import SinkError
from endwell.runtime.base import Runtime
from endwell.runtime.clock import MICROSECONDS

ONE: Final = "application/cloudevents+json; charset=utf-8"
MANY: Final = "application/cloudevents-batch+json; charset=utf-8"
_READ_LIMIT: Final = 65536


class Webhook:
    """POST to one URL. Blocking, so it works in a thread, one request at a time: order is kept."""

    def __init__(
        self, url: str, *, runtime: Runtime, secret: str = "", batch: int = 1, timeout_seconds: float = 10.0
    ) -> None:
        self._parts = _checked(url)
        self.shown = f"{self._parts.scheme}://{self._parts.hostname}"
        self._runtime = runtime
        self._secret = _key(secret)
        self._batch = batch
        self._timeout = timeout_seconds
        self._connection: http.client.HTTPConnection | None = None

    async def send(self, messages: Sequence[Outgoing]) -> None:
        for start in range(0, len(messages), self._batch):
            try:
                await self._runtime.in_thread(self._post, messages[start : start + self._batch])
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                raise SinkError(f"{self.shown}: {str(error) or type(error).__name__}", sent=start) from error
            except SinkError as error:
                error.sent = start
                error.at = start if self._batch == 1 else None
                raise

    def _post(self, messages: Sequence[Outgoing]) -> None:
        body = messages[0].body if self._batch == 1 else b"[" + b",".join(m.body for m in messages) + b"]"
        connection = self._connected()
        target = self._parts.path or "/"
        connection.request(
            "POST",
            f"{target}?{self._parts.query}" if self._parts.query else target,
            body,
            self._headers(messages[0].id, body),
        )
        response = connection.getresponse()
        response.read(_READ_LIMIT)
        if not response.isclosed():  # an endless answer is not for us
            self._drop()
        if not 200 <= response.status < 300:
            raise SinkError(f"{self.shown} answered {response.status} to {messages[0].id}")

    def _headers(self, message_id: str, body: bytes) -> dict[str, str]:
        headers = {"Content-Type": ONE if self._batch == 1 else MANY, "User-Agent": "endwell"}
        if self._parts.username is not None:
            login = f"{self._parts.username}:{self._parts.password or ''}"
            headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        if self._secret:
            stamp = str(self._runtime.clock.now_us() // MICROSECONDS)
            headers |= {"webhook-id": message_id, "webhook-timestamp": stamp}
            headers["webhook-signature"] = signature(self._secret, message_id, stamp, body)
        return headers

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            kind = (
                http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            )
            self._connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        self._drop()


def signature(key: bytes, message_id: str, stamp: str, body: bytes) -> str:
    """What a receiver that knows the secret computes as well."""
    signed = f"{message_id}.{stamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def _key(secret: str) -> bytes:
    """`whsec_…` is the usual form: base64 behind a prefix. Anything else is taken as it stands."""
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        raise BadSetting("relay.secret begins with whsec_, but is not base64", field="relay.secret") from None


def _checked(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadSetting(
            "relay.url must be an http:// or https:// URL for a webhook",
            hint="https://host/path",
            field="relay.url",
        )
    return parts
