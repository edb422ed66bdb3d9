"""Webhook requests: each ends at its deadline and is signed; bad settings are refused."""

from __future__ import annotations

import base64
import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from endwell import Endwell
from endwell.backends import make_sink
from endwell.errors import BadSetting
from endwell.pmo.relay.messages import Outgoing
from endwell.pmo.relay.sink import SinkError
from endwell.pmo.relay.webhook import Webhook
from endwell.runtime import Runtime
from tests.patience import PATIENCE_SECONDS
from tests.servers.webhook import Receiver

DROPS = 200
"""Far more than a receiver sends before the deadline; with no deadline the test ends after them."""


@contextmanager
def dripping(first: bytes, drop: bytes) -> Iterator[tuple[str, threading.Event]]:
    """A receiver that sends its answer in drops; the event is set when it has stopped."""
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
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", b"x"),
        (b"HTTP/1.1 " + b"9" * 60_000 + b" \x1b[31m\0\r\n\r\n", b"x"),
    ],
)
async def test_a_dripping_answer_ends_at_the_deadline(first: bytes, drop: bytes) -> None:
    with dripping(first, drop) as (url, is_dry):
        webhook = Webhook(url, runtime=Runtime.system(), timeout_seconds=0.3)
        with pytest.raises(SinkError) as refusal:
            await webhook.send([message()])
        assert len(str(refusal.value)) < 500
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
        " whsec_" + "A" * 40,
        "WHSEC_" + "A" * 40,
        "whsec-" + "A" * 40,
        "whsec_" + "A" * 41,
        "\udc80" * 40,
    ],
)
def test_a_secret_too_weak_to_sign_is_refused_at_start(secret: str) -> None:
    with pytest.raises(BadSetting) as refusal:
        Webhook("http://127.0.0.1/x", runtime=Runtime.system(), secret=secret)
    assert refusal.value.field == "relay.secret"


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.test:t0ken/x",
        "http://hooks.test:99999/t0ken",
        "http://hooks.test:0/t0ken",
        "http://[::1/t0ken",
        "http://a..b/t0ken",
        "http://" + "a" * 300 + ".test/t0ken",
        "http://hooks .test/t0ken",
        "http://hooks.test/t0ken x",
        "http://hooks.test/t0ken\r\nX: y",
        "http://hooks.test/t0ken\u00e9",
        "http://hooks.test/\udc80t0ken",
        "http:///t0ken",
        "hooks.test/t0ken",
    ],
)
def test_an_impossible_url_is_refused_at_start_without_its_token(url: str) -> None:
    with pytest.raises(BadSetting) as refusal:
        Webhook(url, runtime=Runtime.system())
    assert refusal.value.field == "relay.url"
    assert "t0ken" not in "".join(traceback.format_exception(refusal.value))


async def test_login_of_a_webhook_is_sent_without_percent_escapes() -> None:
    with Receiver() as receiver:
        webhook = Webhook(receiver.url.replace("//", "//a%40b:c%2Fd@"), runtime=Runtime.system())
        await webhook.send([message()])
        await webhook.close()
    (request,) = receiver.requests
    assert base64.b64decode(request.headers["authorization"].removeprefix("Basic ")) == b"a@b:c/d"


def test_secret_that_is_set_but_empty_is_refused(sqlite_url: str) -> None:
    settings = {"relay.kind": "webhook", "relay.url": "http://127.0.0.1/x", "relay.secret": ""}
    app = Endwell(sqlite_url, settings=settings)
    with pytest.raises(BadSetting, match="is empty"):
        make_sink(app.settings, Runtime.system())
