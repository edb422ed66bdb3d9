"""The command as a process: all of its output arrives, and Ctrl-C at any moment exits with 130."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.shell import SECONDS, Shell

BIG = "x" * 900_000
SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_long_json_output_arrives_whole_at_a_slow_non_blocking_reader(
    shell: Shell, store: str, unbuffered: str
) -> None:
    submitted = shell.run("submit", "clerk", "-", "--store", store, "--json", stdin=json.dumps({"id": BIG}))
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    received: list[bytes] = []
    with os.fdopen(read_end, "rb") as reader:
        command = [sys.executable, "-m", "endwell", "task", "show", submitted.document["id"], "--json"]
        environment = {**shell.environment, "PYTHONUNBUFFERED": unbuffered}
        with subprocess.Popen([*command, "--store", store], stdout=write_end, env=environment) as process:
            os.close(write_end)
            thread = threading.Thread(target=lambda: received.append(reader.read()))
            thread.start()
            assert process.wait(SECONDS) == 0
            thread.join(SECONDS)
    assert json.loads(received[0])["payload"] == {"id": BIG}


def test_ctrl_c_while_modules_are_imported_exits_with_130(tmp_path: Path) -> None:
    """The test replaces `click`, which never finishes its import, as on a very slow disk."""
    (tmp_path / "click.py").write_text(
        "import signal, sys\nsys.stdout.write('importing\\n')\nsys.stdout.flush()\nsignal.pause()\n"
    )
    command = [sys.executable, "-m", "endwell", "task", "list"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{SOURCE}"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert err == "interrupted\n"
