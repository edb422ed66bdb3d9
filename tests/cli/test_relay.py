"""A PMO that is killed with -9 while it sends a message: another one continues, and no message is lost."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.cli.shell import SECONDS, Shell
from tests.servers.webhook import Receiver, Request


@pytest.mark.covers("T5")
def test_a_pmo_killed_before_the_cursor_moves_sends_the_message_again(shell: Shell) -> None:
    with Receiver() as receiver:
        told = {
            "ENDWELL__RELAY__KIND": "webhook",
            "ENDWELL__RELAY__URL": receiver.url,
            "ENDWELL__RELAY__LEASE_SECONDS": "1.5",
            "ENDWELL__RELAY__EVENTS": "task",
        }
        with shell.serving("worker"):
            asked = [
                shell.run("submit", "clerk", payload, "--wait", "--json")
                for payload in ('{"id":"1"}', '{"id":"2"}')
            ]
            tasks = {answer.document["id"] for answer in asked}
        with shell.serving("pmo", environment=told) as first:

            def kill_it(request: Request) -> int:
                os.kill(first.pid, signal.SIGKILL)
                return 204

            receiver.answer = kill_it
            assert first.wait(SECONDS) == -signal.SIGKILL
        assert len(receiver.requests) == 1
        receiver.answer = lambda request: 204
        with shell.serving("pmo", environment=told):
            give_up_at = time.monotonic() + SECONDS
            while {data["task_id"] for data in receiver.of("task")} != tasks or len(receiver.requests) < 3:
                assert time.monotonic() < give_up_at, receiver.messages
                time.sleep(0.01)
        ids = [message["id"] for message in receiver.messages]
        assert ids[0] == ids[1], "told again, under the same id"
        assert sorted(set(ids)) == sorted(ids[1:])
