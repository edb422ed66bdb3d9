"""What happened in a simulation: who did what when, and one hash over all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from endwell.runtime.clock import MICROSECONDS


class Entry(NamedTuple):
    """One line of a trace."""

    at_us: int
    who: str
    what: str
    about: str


class Trace:
    """Grows by one entry for each thing that anybody could notice."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._hash = hashlib.sha256()

    def note(self, at_us: int, who: str, what: str, about: str = "", proof: bytes = b"") -> None:
        """`proof` goes into the hash only: the hash of a logged event stands for all it says."""
        self.entries.append(Entry(at_us, who, what, about))
        self._hash.update(f"{at_us}\n{who}\n{what}\n{about}\n".encode() + proof)

    @property
    def digest(self) -> str:
        """The same for two runs exactly if the same things happened at the same times."""
        return self._hash.hexdigest()

    def table(self, last: int | None = None, about: Iterable[str] = ()) -> str:
        """As text: the last so many entries, or those that are faults or concern one of these ids."""
        wanted = set(about)
        rows = [
            e for e in self.entries if not wanted or e.what.startswith("!") or wanted & set(e.about.split())
        ]
        rows = rows[-last:] if last else rows
        return "\n".join(f"{_clock(e.at_us)}  {e.who:<10} {e.what:<28} {e.about}".rstrip() for e in rows)


def _concerns(entry: Entry, wanted: set[str]) -> bool:
    return entry.what.startswith("!") or bool(wanted & set(entry.about.split()))


def _clock(at_us: int) -> str:
    seconds, micro = divmod(at_us, MICROSECONDS)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micro // 1000:03}"
