"""The pytest plugin: a `world` for each test that asks for one. Installed with Endwell; nothing to switch on.

`@pytest.mark.world(app, workers=2)` gives it an app, and whatever else `World` takes; `seed=` another course.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from endwell.testing.world import World


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", "world(app, ...): the app and options of this test's `world`")


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """An installation with a worker, a supervisor and time of its own; the oracle judges it at the end."""
    from endwell.testing.world import World  # only for tests that ask for one

    mark = request.node.get_closest_marker("world")
    made = World(*mark.args, **mark.kwargs) if mark else World()
    try:
        yield made
        made.close()
    except BaseException:
        made.close(judge=False)
        raise
