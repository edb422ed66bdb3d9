"""The seed's four acceptance criteria with real processes, as `endwell selftest redis` tries them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from endwell.redis_client import RedisClient
from tests.patience import PATIENCE_SECONDS

ENDWELL = [sys.executable, "-m", "endwell"]


def selftest(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ENDWELL__")}
    command = [*ENDWELL, "selftest", "redis", *words, "--json"]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=PATIENCE_SECONDS, check=False
    )


@pytest.mark.covers("S4.57", "S4.58", "S4.59", "S4.60", "S4.34", "S4.32")
async def test_all_four_criteria_hold_on_a_real_server_and_nothing_is_left_there(
    redis_url: str, tmp_path: Path
) -> None:
    done = selftest(redis_url)
    said = json.loads(done.stdout)
    assert [(item["criterion"], item["ok"], item["detail"]) for item in said["items"] if not item["ok"]] == []
    assert [item["criterion"] for item in said["items"]] == [1, 2, 3, 4]
    assert (done.returncode, said["ok"]) == (0, True)
    redis = RedisClient(redis_url)
    assert await redis.ask("KEYS", "endwell-selftest-*") == []
    await redis.close()


def test_unreachable_server_is_reported_without_its_password() -> None:
    done = selftest("redis://:secret@127.0.0.1:1")
    assert done.returncode == 1
    assert "does not answer" in done.stdout + done.stderr
    assert "secret" not in done.stdout + done.stderr


def test_selftest_without_a_server_is_a_usage_error() -> None:
    assert selftest().returncode == 2
