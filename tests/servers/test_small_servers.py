"""The test suite's own Valkey and NATS: killed and started again at will, and gone without a trace."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.patience import PATIENCE_SECONDS
from tests.servers.small import NatsServer, SmallServer, ValkeyServer

KINDS = [ValkeyServer, NatsServer]


def answers(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), PATIENCE_SECONDS).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_server_comes_back_at_its_place_and_leaves_no_trace(kind: type[SmallServer]) -> None:
    server = kind()
    server.start()
    try:
        first = psutil.Process(server.pid)
        server.kill()
        assert not first.is_running()
        assert not answers(server.url)
        server.start()
        assert answers(server.url)
        assert server.pid != first.pid
    finally:
        server.stop()
    assert not answers(server.url)
    assert not server.home.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_server_fails_loudly(
    kind: type[SmallServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(f"{kind.variable}_BIN", str(tmp_path / "none"))
    server = kind()
    with pytest.raises(RuntimeError, match="run make"):
        server.start()
    server.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_cannot_start_shows_its_log(
    kind: type[SmallServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{kind.variable}_BIN", "/bin/false")
    server = kind()
    with pytest.raises(RuntimeError, match="did not start"):
        server.start()
    server.stop()
