"""A second process at the same doorbell: `listen`, or `ring TOPIC`.

Run with Python code that leaves a bell in the name `bell`, for whichever kind of bell is under test.
"""

from __future__ import annotations

import asyncio
import json
import sys

from endwell.doorbell import Doorbell


async def listen(bell: Doorbell) -> None:
    bell.subscribe(lambda topics: say(sorted(topics)))
    await bell.open()
    say(["ready"])
    await asyncio.Event().wait()


async def ring(bell: Doorbell, topic: str) -> None:
    await bell.open()
    bell.ring([topic])
    await bell.close()


def say(what: list[str]) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - how the test hears it


def main(recipe: str, verb: str, *args: str) -> None:
    names: dict[str, Doorbell] = {}
    exec(recipe, names)  # noqa: S102 - the test's own code
    asyncio.run(ring(names["bell"], *args) if verb == "ring" else listen(names["bell"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
