"""An app with two agents, for scripts and programs that use the library."""

from __future__ import annotations

import threading
import uuid

from endwell import Endwell
from tests.support.world import QUICK


def small_app(url: str) -> Endwell:
    app = Endwell(url, namespace=f"test-{uuid.uuid4().hex}", settings=QUICK)

    @app.agent("double")
    async def double(number: int) -> int:
        return 2 * number

    @app.agent("shout")
    def shout(text: str) -> str:
        return f"{text.upper()} in {threading.current_thread().name.partition('-')[0]}"

    return app
