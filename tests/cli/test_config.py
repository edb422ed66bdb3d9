"""`endwell config show`: every key, its value, its source, and contradictions."""

from __future__ import annotations

from pathlib import Path

import pytest

from endwell.settings.sections import KEYS
from tests.cli.conftest import Command


def test_every_setting_is_shown_with_its_source(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "endwell.toml").write_text("[retry]\nmax_retries = 2\n", encoding="utf-8")
    monkeypatch.setenv("ENDWELL__WORKER__LEASE_SECONDS", "60")
    answer = command("config", "show", "--store", "postgresql://bob:hunter2@db/x", "--json")
    items = {item["key"]: item for item in answer.document["items"]}
    assert list(items) == list(KEYS)
    assert answer.document["problem"] is None
    assert items["retry.max_retries"]["value"] == 2
    assert items["retry.max_retries"]["source"].endswith("endwell.toml")
    assert items["worker.lease_seconds"]["source"] == "ENDWELL__WORKER__LEASE_SECONDS"
    assert items["store"] == {"key": "store", "value": "postgresql://bob:***@db/x", "source": "--store"}


def test_contradictory_settings_are_shown_with_the_problem(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENDWELL__RETRY__MAX_RETRIES", "50")
    answer = command("config", "show", "--json")
    assert answer.code == 1
    assert answer.document["problem"]["field"] == "pmo.runaway_limit"
    assert "problem: A task may legally run" in command("config", "show").out


def test_an_unknown_setting_is_refused_with_the_nearest_known(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENDWELL__WORKER__LEASE_SECOND", "60")
    answer = command("task", "list", "--json")
    assert (answer.code, answer.error["code"]) == (2, "bad_setting")
    assert "LEASE_SECONDS" in (answer.error["hint"] or "")
