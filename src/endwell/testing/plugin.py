"""The pytest plugin: the fixture `world`. It is active wherever Endwell is installed.

`@pytest.mark.world(app, workers=2)` passes an app and the options of `World`; `seed=` gives another course.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from endwell.testing.world import World


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", "world(app, ...): the app and options of this test's `world`")


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Make a world with a worker and a supervisor in virtual time; the oracle judges it at the end."""
    from endwell.testing.world import World  # only for tests that ask for one

    mark = request.node.get_closest_marker("world")
    made = World(*mark.args, **mark.kwargs) if mark else World()
    try:
        yield made
        made.close()
    except BaseException:
        made.close(judge=False)
        raise
