"""The trace of a simulation: which process did what and when, and one hash over all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from endwell.model.moments import SECOND


class TraceLine(NamedTuple):
    """One line of a trace."""

    at_us: int
    who: str
    what: str
    about: str

    def __str__(self) -> str:
        seconds, micro = divmod(self.at_us, SECOND)
        clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micro // 1000:03}"
        return f"{clock}  {self.who:<10} {self.what:<28} {self.about}".rstrip()


class Trace:
    """Grows by one line for each thing that a process could notice."""

    def __init__(self) -> None:
        self.lines: list[TraceLine] = []
        self._hash = hashlib.sha256()

    def add(self, at_us: int, who: str, what: str, about: str = "", proof: bytes = b"") -> None:
        """Add a line. `proof` goes into the hash only: the hash of an event stands for its content."""
        self.lines.append(TraceLine(at_us, who, what, about))
        self._hash.update(f"{at_us}\n{who}\n{what}\n{about}\n".encode() + proof)

    @property
    def digest(self) -> str:
        """Equal for two runs exactly if the same things happened at the same times."""
        return self._hash.hexdigest()

    def to_table(self, last: int | None = None, about: Iterable[str] = ()) -> str:
        """Show the last lines, or those that are faults or concern one of these ids."""
        wanted = set(about)
        lines = [
            line
            for line in self.lines
            if not wanted or line.what.startswith("!") or wanted & set(line.about.split())
        ]
        return "\n".join(map(str, lines[-last:] if last else lines))
