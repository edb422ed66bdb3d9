"""One piece of one part, in a process of its own: `python -m tests.campaign.piece PART SEED SIZE`.

A line of JSON for each thing that it has come to; the exit code says only whether it came to its end.
"""

from __future__ import annotations

import sys

import msgspec

from tests.campaign.figures import Line
from tests.campaign.plan import PARTS


def main(arguments: list[str]) -> int:
    name, seed, size = arguments[0], int(arguments[1]), int(arguments[2])
    out = sys.stdout
    sys.stdout = sys.stderr  # whatever a part prints is no line of ours

    def say(line: Line) -> None:
        out.write(msgspec.json.encode(line).decode() + "\n")
        out.flush()

    PARTS[name].run(seed, size, say)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
