"""One piece of one part, in a process of its own: `python -m tests.proof.campaign.piece PART SEED SIZE`.

Prints a line of JSON for each result. The exit code says only whether it ran to its end. Under a driver it
ends when its input closes, that is, with its driver.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import msgspec

from tests.proof.campaign.driver import ATTENDED
from tests.proof.campaign.figures import Line
from tests.proof.campaign.plan import PARTS


def end_with_driver() -> None:
    """Kill this process group when the input closes; keep the input from processes started here."""
    watched = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def watch() -> None:
        while os.read(watched, 1):
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: list[str]) -> int:
    name, seed, size = arguments[0], int(arguments[1]), int(arguments[2])
    out = sys.stdout
    sys.stdout = sys.stderr  # only lines of results may go to the real output

    def say(line: Line) -> None:
        out.write(msgspec.json.encode(line).decode() + "\n")
        out.flush()

    PARTS[name].run(seed, size, say)
    return 0


if __name__ == "__main__":
    if ATTENDED in os.environ:
        end_with_driver()
    sys.exit(main(sys.argv[1:]))
