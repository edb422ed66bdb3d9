"""Which doorbell an installation has, as its settings say."""

from __future__ import annotations

from typing import Any

import pytest

from endwell import Endwell
from endwell.errors import BadSetting

NATS = {"nats.url": "nats://127.0.0.1:1"}
REDIS = {"redis.url": "redis://127.0.0.1:1"}


def kind_of(url: str, settings: dict[str, Any]) -> str:
    return Endwell(url, settings=settings).open_bell().health().kind


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, "local"),
        (NATS, "nats"),
        (REDIS, "redis"),
        (NATS | REDIS, "nats"),
        (NATS | REDIS | {"doorbell.kind": "redis"}, "redis"),
        (NATS | REDIS | {"doorbell.kind": "store"}, "local"),
    ],
)
def test_the_settings_choose_the_bell(settings: dict[str, Any], kind: str) -> None:
    assert kind_of("sqlite:///endwell.db", settings) == kind


def test_postgresql_store_has_its_own_bell() -> None:
    assert kind_of("postgresql://127.0.0.1:1/none", {}) == "postgresql"


def test_missing_server_url_is_refused_at_the_start() -> None:
    with pytest.raises(BadSetting, match=r"redis\.url is not set"):
        Endwell("sqlite:///endwell.db", settings={"doorbell.kind": "redis"})
