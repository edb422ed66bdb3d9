"""The seed's four acceptance criteria, one test each: a server process, a PMO process, worker processes.

`endwell selftest redis` tries the same on an operator's server, with its own code (test_acceptance.py).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from endwell import Endwell, Handle, TaskFailed
from endwell.demo.crew import clean_environment
from endwell.selftest import agents
from tests.patience import PATIENCE_SECONDS
from tests.servers.small import ValkeyServer

VISIBILITY_SECONDS = 2.0
SETTINGS: dict[str, object] = {
    "queue.kind": "redis",
    "doorbell.kind": "store",
    "queue.VISIBILITY_TIMEOUT_S": VISIBILITY_SECONDS,
    "queue.HEARTBEAT_INTERVAL_S": 0.3,
    "queue.RECLAIM_INTERVAL_S": 0.3,
    "queue.MAX_RETRIES": 3,
    "pmo.watchdog_interval_seconds": 0.3,
    "retry.base_seconds": 0.05,
}


class Fleet:
    """One installation of real processes, and what its store, its server and the outside world tell."""

    def __init__(self, directory: Path, server: ValkeyServer) -> None:
        values = {**SETTINGS, "redis.url": server.url}
        url = f"sqlite:///{directory / 'store.db'}"
        self.sink = directory / "sink"
        self._environment = clean_environment(url, values, {agents.SINK: str(self.sink)})
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.app = Endwell(url, settings=values)
        self.redis: Any = Redis.from_url(server.url)

    def start(self, name: str, *words: str) -> None:
        command = [sys.executable, "-m", "endwell", *words, "--json"]
        child = subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert b'"ready"' in child.stdout.readline()
        self._children[name] = child

    def worker(self, name: str) -> None:
        self.start(name, "worker", "--app", "endwell.selftest.agents:app", "--name", name)

    def kill(self, name: str) -> int:
        """As a power cut would; its process id."""
        child = self._children.pop(name)
        child.kill()
        child.wait()
        return child.pid

    def close(self) -> None:
        for name in list(self._children):
            self.kill(name)
        self.app.close()
        self.redis.close()

    def history(self, handle: Handle) -> list[tuple[str, dict[str, Any]]]:
        front = self.app.front()
        events = front.call(lambda: front.client.store.events_of_task("default", handle.id))
        return [(event.type, json.loads(event.data)) for event in events]

    def types(self, handle: Handle) -> list[str]:
        return [kind for kind, _ in self.history(handle) if kind.startswith("task.")]

    def pending(self) -> int:
        return int(self.redis.xpending("stream:task", "cg:workers")["pending"])

    def done_outside(self, what: str) -> int:
        return self.sink.read_text().splitlines().count(what) if self.sink.exists() else 0


def until(condition: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A server, a PMO and a worker, each a process, for all four."""
    server = ValkeyServer()
    server.start()
    with contextlib.ExitStack() as closing:
        closing.callback(server.stop)
        made = Fleet(tmp_path_factory.mktemp("fleet"), server)
        closing.callback(made.close)
        made.start("pmo", "pmo")
        made.worker("first")
        yield made


@pytest.mark.covers("S4.57", "S4.1", "S4.14", "S4.48", "S4.49", "S4.50")
def test_task_is_created_claimed_and_succeeds_and_no_entry_stays_pending(fleet: Fleet) -> None:
    handle = fleet.app.submit("echo", 7)
    assert handle.result(timeout=PATIENCE_SECONDS) == 7
    assert fleet.types(handle) == ["task.created", "task.dispatched", "task.claimed", "task.succeeded"]
    until(lambda: fleet.pending() == 0, "its entry is acknowledged")


@pytest.mark.covers("S4.58", "S4.14", "S4.29", "S4.30", "S4.36", "S4.39", "S4.43", "S4.44", "S4.45")
def test_failing_task_is_retried_three_times_then_dead_lettered_and_logged(
    fleet: Fleet,
) -> None:
    handle = fleet.app.submit("fails")
    with pytest.raises(TaskFailed):
        handle.result(timeout=PATIENCE_SECONDS)
    once = ["task.dispatched", "task.claimed"]
    again = [*once, "task.retry_scheduled"]
    assert fleet.types(handle) == ["task.created", *again, *again, *again, *once, "task.failed", "task.dlq"]

    def letters() -> list[dict[bytes, bytes]]:
        found = [fields for _, fields in fleet.redis.xrange("stream:dlq")]
        return [fields for fields in found if fields[b"task_id"] == handle.id.encode()]

    until(lambda: len(letters()) == 1, "the dead letter is on the stream")
    (letter,) = letters()
    assert (letter[b"tool_name"], letter[b"retry_count"]) == (b"fails", b"4")
    assert b"as it should" in letter[b"error"]
    assert letter[b"failed_at"].endswith(b"Z")
    until(lambda: fleet.pending() == 0, "every entry is acknowledged")


@pytest.mark.covers("S4.59", "S4.15", "S4.18", "S4.21", "S4.25", "S4.26", "S4.27", "S4.28", "S4.52")
def test_turn_of_a_killed_worker_is_reclaimed_and_done_by_the_next_worker(
    fleet: Fleet,
) -> None:
    handle = fleet.app.submit("held")
    until(lambda: fleet.done_outside("held") == 1, "a worker has begun")
    assert fleet.pending() == 1
    (entry,) = fleet.redis.xpending_range("stream:task", "cg:workers", "-", "+", 1)
    dead = f"first-{fleet.kill('first')}"
    killed_at = time.monotonic()
    fleet.worker("second")
    assert handle.result(timeout=PATIENCE_SECONDS) == "done"
    assert time.monotonic() - killed_at >= VISIBILITY_SECONDS - 0.5, "its last heartbeat was not heeded"
    (reclaim,) = [data for kind, data in fleet.history(handle) if kind == "task.reclaimed"]
    assert (reclaim["old_consumer"], reclaim["message_id"]) == (dead, entry["message_id"].decode())
    assert reclaim["new_consumer"].startswith("pmo-")
    assert fleet.types(handle).count("task.succeeded") == 1
    until(lambda: fleet.pending() == 0, "both entries are acknowledged")


@pytest.mark.covers("S4.60", "S4.32", "S4.34")
def test_the_same_idempotency_key_pays_once(fleet: Fleet) -> None:
    first = fleet.app.submit("pays", "42", key="order-42")
    again = fleet.app.submit("pays", "42", key="order-42")
    other = fleet.app.submit("pays", "42", key="order-42-again")  # another task, the same effect
    assert first.id == again.id != other.id
    assert [handle.result(timeout=PATIENCE_SECONDS) for handle in (first, again, other)] == [1, 1, 1]
    assert fleet.done_outside("paid 42") == 1
    until(lambda: fleet.pending() == 0, "every entry is acknowledged")
