"""A second process at the same doorbell: `listen`, or `ring TOPIC`.

Run with Python code that leaves a bell in the name `bell`, for whichever kind of bell is under test.
"""

from __future__ import annotations

import asyncio
import json
import sys

from endwell.doorbell import Doorbell, server_bell


async def listen(bell: Doorbell) -> None:
    await opened(bell)
    bell.subscribe(lambda topics: say(sorted(topics)))
    say(["ready"])
    await asyncio.Event().wait()


async def ring(bell: Doorbell, topic: str) -> None:
    await opened(bell)
    bell.ring([topic])
    await bell.close()


async def opened(bell: Doorbell) -> None:
    """Opening waits for a slow server only a moment; rings before it answers would be missed."""
    await bell.open()
    while not bell.health().connected:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.005)


def say(what: list[str]) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - how the test hears it


def main(recipe: str, verb: str, *args: str) -> None:
    server_bell.FLUSH_SECONDS = 60.0  # however busy the machine is
    names: dict[str, Doorbell] = {}
    exec(recipe, names)  # noqa: S102 - the test's own code
    asyncio.run(ring(names["bell"], *args) if verb == "ring" else listen(names["bell"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
