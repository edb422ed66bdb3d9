"""The worlds that tests of this room work in."""

from tests.support.fixtures import (
    clerk,
    quick_world,
    shared_postgres_url,
    sqlite_url,
    sqlite_world,
    store_url,
    world,
)

__all__ = [
    "clerk",
    "quick_world",
    "shared_postgres_url",
    "sqlite_url",
    "sqlite_world",
    "store_url",
    "world",
]
