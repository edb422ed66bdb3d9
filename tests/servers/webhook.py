"""A receiver of webhooks on loopback, which keeps every request and answers as the test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Request:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return the CloudEvents of this request."""
        said = json.loads(self.body)
        return said if isinstance(said, list) else [said]


class Receiver:
    """`requests` are all requests; `answer` decides the status of each, 204 by default."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Callable[[Request], int] = lambda request: 204
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.path, headers, body)
                receiver.requests.append(request)
                self.send_response(receiver.answer(request))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing on stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return every CloudEvent, repetitions included, in order of arrival."""
        return [message for request in list(self.requests) for message in request.messages]

    def of(self, suffix: str) -> list[dict[str, Any]]:
        """Return the data of the messages of one kind."""
        return [m["data"] for m in self.messages if m["type"] == f"endwell.v1.evt.agent.{suffix}"]
