"""Runs pieces in processes of their own, some at a time, and adds up their lines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from endwell.runtime.loops import VARIABLE as EVENT_LOOP
from tests.proof.campaign.figures import Line, Totals

PIECE_SECONDS: Final = 900.0
"""A piece that takes longer hangs, and that is a failure too."""
ATTENDED: Final = "ENDWELL_PIECE_IS_ATTENDED"
"""Environment variable of a piece whose input closes when its driver ends, even by a kill."""
LOOPS: Final = ("asyncio", "uvloop")
"""Event loops of pieces in turn."""
LONGEST_LINE: Final = 1 << 24
SAID_LIMIT: Final = 3000


class Piece(NamedTuple):
    """A part of the campaign, with one seed and a size."""

    part: str
    seed: int
    size: int

    @property
    def argv(self) -> list[str]:
        return [sys.executable, "-m", "tests.proof.campaign.piece", self.part, str(self.seed), str(self.size)]


@dataclass
class Driver:
    """Runs pieces. `changed` is called after every line, `ended` after each piece that ended well.

    `spent` are the seconds that the pieces of each part took.
    """

    totals: Totals
    jobs: int = 0
    changed: Callable[[], None] = lambda: None
    ended: Callable[[Piece], None] = lambda piece: None
    spent: dict[str, float] = field(default_factory=dict)

    def run(self, pieces: Iterator[Piece], waiting: Iterable[Piece] = ()) -> None:
        """Run all pieces; the next one is taken when a process is free.

        Pieces of `waiting` mostly wait for leases to lapse; they run one after the other beside the others.
        When they are done, their process takes other pieces too, unless the number of jobs was given.
        """
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # pieces end with their driver
        asyncio.run(self._run(pieces, iter(waiting)))

    async def _run(self, pieces: Iterator[Piece], waiting: Iterator[Piece]) -> None:
        lanes = [self._lane(pieces) for _ in range(self.jobs or os.cpu_count() or 2)]
        beside = waiting if self.jobs else chain(waiting, pieces)
        await asyncio.gather(*lanes, self._lane(beside))

    async def _lane(self, pieces: Iterator[Piece]) -> None:
        for piece in pieces:
            began = time.monotonic()
            self.totals.begun[piece.part] = self.totals.begun.get(piece.part, 0) + 1
            if await self._one(piece):
                self.ended(piece)
            took = time.monotonic() - began
            self.spent[piece.part] = self.spent.get(piece.part, 0.0) + took
            self.changed()

    async def _one(self, piece: Piece) -> bool:
        """Run a piece; return whether it ended well."""
        process = await asyncio.create_subprocess_exec(
            *piece.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE,
            start_new_session=True,
            env={**os.environ, ATTENDED: "1", EVENT_LOOP: LOOPS[piece.seed % 2]},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        said = asyncio.ensure_future(process.stderr.read())
        try:
            async with asyncio.timeout(PIECE_SECONDS):
                async for line in process.stdout:
                    self.totals.add(msgspec.json.decode(line, type=Line))
                    self.changed()
                code: int | str = await process.wait()
        except TimeoutError:
            code = f"none within {PIECE_SECONDS:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with every process it has started
            await process.wait()
            process.stdin.close()
            text = (await said).decode(errors="replace")[-SAID_LIMIT:]
        if code != 0:
            self.totals.add(Line(failed=(f"{' '.join(piece.argv[1:])}: exit {code}\n{text}",)))
        return code == 0
