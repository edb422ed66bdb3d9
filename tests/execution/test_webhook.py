"""One webhook request: it ends at its deadline whatever the receiver does, and is signed or refused."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from endwell import Endwell
from endwell.app import _sink
from endwell.errors import BadSetting
from endwell.pmo.relay.messages import Outgoing
from endwell.pmo.relay.sink import SinkError
from endwell.pmo.relay.webhook import Webhook
from endwell.runtime import Runtime
from tests.patience import PATIENCE_SECONDS

DROPS = 200
"""Far more than a receiver sends before the deadline; with no deadline the test ends after them."""


@contextmanager
def dripping(first: bytes, drop: bytes) -> Iterator[tuple[str, threading.Event]]:
    """A receiver that sends the first bytes at once and then one drop after another; set when it ran dry."""
    is_over, is_dry = threading.Event(), threading.Event()
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        try:
            connection, _ = server.accept()
            with connection:
                connection.sendall(first)
                for _ in range(DROPS):
                    if is_over.wait(0.02):
                        return
                    connection.sendall(drop)
                is_dry.set()
        except OSError:  # the other side has had enough
            pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/hook", is_dry
    finally:
        is_over.set()
        server.close()
        thread.join(PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 204 No Content\r\n", b"x: y\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
)
async def test_receiver_that_drips_its_answer_is_left_at_the_deadline(first: bytes, drop: bytes) -> None:
    with dripping(first, drop) as (url, is_dry):
        webhook = Webhook(url, runtime=Runtime.system(), timeout_seconds=0.3)
        with pytest.raises(SinkError):
            await webhook.send([message()])
        assert not is_dry.is_set(), "the request waited for the whole answer"
        await webhook.close()


def message() -> Outgoing:
    return Outgoing(subject="s", id="1.a", body=b"{}")


@pytest.mark.parametrize(
    "secret",
    [
        "whsec_",
        "whsec_====",
        "whsec_not base64",
        "whsec_" + base64.b64encode(b"short").decode(),
        "short",
        " " * 40,
    ],
)
def test_secret_that_could_not_sign_is_refused_at_start(secret: str) -> None:
    with pytest.raises(BadSetting) as refusal:
        Webhook("http://127.0.0.1/x", runtime=Runtime.system(), secret=secret)
    assert refusal.value.field == "relay.secret"


def test_secret_that_is_set_but_empty_is_refused(sqlite_url: str) -> None:
    settings = {"relay.kind": "webhook", "relay.url": "http://127.0.0.1/x", "relay.secret": ""}
    app = Endwell(sqlite_url, settings=settings)
    with pytest.raises(BadSetting, match="is empty"):
        _sink(app.settings, Runtime.system())
