"""Settings never show a password: masked URLs, web addresses and descriptions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endwell.errors import BadSetting
from endwell.settings import Settings, describe, load, mask_url, override
from endwell.settings.store_url import sqlite_path


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@db/prod", "postgresql://me:***@db/prod"),
        ("postgresql://me@db:5432/prod", "postgresql://me@db:5432/prod"),
        ("postgresql://me:p@ss/w:rd@db/prod", "postgresql://me:***@db/prod"),
        (
            "postgresql://db/prod?user=me&password=hunter2&x=1",
            "postgresql://db/prod?user=me&password=***&x=1",
        ),
        ("host=db password='hun ter2' user=me", "host=db password=*** user=me"),
        ("redis://:hunter2@cache:6379/0", "redis://:***@cache:6379/0"),
        ("nats://t0ken@bus", "nats://***@bus"),
        ("nats://a:b@one,nats://c:d@two", "nats://a:***@one,nats://c:***@two"),
        ("sqlite:///endwell.db", "sqlite:///endwell.db"),
        ("sqlite:////data/a:b@c.db", "sqlite:////data/a:b@c.db"),
        ("postgres//me:hunter2@db/prod", "postgres//***@db/prod"),
        ("postgresql:/me:hunter2@db", "postgresql:/***@db"),
        ("postgresql:///me:hunter2@db", "postgresql:///***@db"),
        ("me:hunter2@db/prod", "me:***@db/prod"),
        ("postgresql://me:hunter2/prod", "postgresql://me:***/prod"),
        ("postgresql://db:5432/prod", "postgresql://db:5432/prod"),
        ("https://t0ken@hooks.test/a", "https://***@hooks.test/***"),
        ("https://hooks.test:8443/services/T0/B0?sig=x", "https://hooks.test:8443/***"),
        ("https://hooks.test?t0ken", "https://hooks.test/***"),
        ("https://hooks.test", "https://hooks.test"),
        ("https://hooks.test:t0ken/", "https://hooks.test/***"),
        (" https://hooks.test/t0ken", " https://hooks.test/***"),
        ("https://hooks.test\\t0ken", "https://hooks.test/***"),
        ("htps://hooks.test/t0ken", "htps://hooks.test/***"),
        ("http//hooks.test/t0ken", "http//hooks.test/***"),
        ("ftp://t0ken@hooks.test/t0ken", "ftp://***@hooks.test/***"),
        ("https://hooks.test/a?to=me@t0ken", "https://***"),
        ("https://hooks.test:8443:", "https://hooks.test:8443:"),
        ("https://hooks.test;t0ken", "https://hooks.test/***"),
        ("redis://cache:6379: it does not answer", "redis://cache:6379: it does not answer"),
        ("redis://cache:6379:hunter2", "redis://cache:***"),
        ("postgresql://me@db:hunter2/prod", "postgresql://me@db:***/prod"),
        ("postgresql://me:hunter2@db:hunter2/prod", "postgresql://me:***@db:***/prod"),
        ("postgresql://one:5432,two:hunter2/prod", "postgresql://one:5432,two:***/prod"),
        ("postgresql://me@one:5432,two:5433/prod", "postgresql://me@one:5432,two:5433/prod"),
        ("postgresql://me@db/prod?pass=hunter2&pw=hunter2", "postgresql://me@db/prod?pass=***&pw=***"),
        ("redis://t0ken@cache", "redis://***@cache"),
        ("valkeys://t0ken@cache:1/0", "valkeys://***@cache:1/0"),
        ("postgresql://me%3Ahunter2@db/prod", "postgresql://***@db/prod"),
        ("", ""),
    ],
)
def test_passwords_are_masked(url: str, shown: str) -> None:
    assert mask_url(url) == shown
    assert mask_url(shown) == shown, "what is masked twice stays readable"


@pytest.mark.parametrize("url", ["hooks.test/t0ken", "hooks.test?t0ken", "https://hooks.test/t0ken"])
def test_only_the_host_of_a_webhook_is_shown_even_without_a_scheme(url: str) -> None:
    settings = override(Settings(), {"relay.url": url}, source="here")
    shown = {each.key: each.value for each in describe(settings)}
    assert shown["relay.url"] == f"{url.partition('t0ken')[0][:-1]}/***"


def test_options_of_a_sqlite_url_are_refused_without_their_values() -> None:
    with pytest.raises(BadSetting, match=r"key=\*\*\*'"):
        sqlite_path("sqlite:///endwell.db?key=hunter2")


SECRET = "hunter2"
_SCHEME = st.sampled_from(
    ["postgresql", "postgres", "redis", "nats", "https", "HTTP", "wss", "", "pg", "x+y"]
)
_GAP = st.sampled_from(["://", ":/", "//", ":", ":///", ";//", "/", ""])
_USER = st.sampled_from(["", "me", "m%40e", "a.b"])
_PASSWORD = st.sampled_from(
    [SECRET, f"{SECRET}/x", f"a@{SECRET}", f"{SECRET}:y", f"{SECRET}?z", f"#{SECRET}"]
)
_TAIL = st.sampled_from(["db", "db:5432/x", "db/x?y=1", "[::1]/x", ""])


@given(_SCHEME, _GAP, _USER, _PASSWORD, _TAIL)
def test_no_mistyped_url_shows_its_password(
    scheme: str, gap: str, user: str, password: str, tail: str
) -> None:
    assert SECRET not in mask_url(f"{scheme}{gap}{user}:{password}@{tail}")


@given(
    st.sampled_from(["https://", "http:/", "HTTPS://", "htps://", "http//", "hook:/", " https:"]),
    st.sampled_from(["db", "db:8443", "[::1]"]),
    st.sampled_from("/?#@"),
)
def test_no_web_address_shows_more_than_its_host(scheme: str, host: str, mark: str) -> None:
    secret = f"{SECRET}@{host}" if mark == "@" else f"{host}{mark}{SECRET}/{SECRET}?a={SECRET}"
    assert SECRET not in mask_url(scheme + secret)


def test_described_settings_hold_no_password(tmp_path: Path) -> None:
    urls = {
        "ENDWELL_STORE": "postgresql://me:hunter2@db/prod",
        "ENDWELL__REDIS__URL": "redis://:hunter2@cache",
        "ENDWELL__NATS__URL": "nats://me:hunter2@bus",
    }
    described = describe(load(urls, tmp_path))
    assert "hunter2" not in repr(described)
    assert ("store", "postgresql://me:***@db/prod", "ENDWELL_STORE") in described
