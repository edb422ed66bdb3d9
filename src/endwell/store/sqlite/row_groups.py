"""Writing many rows with few statements: each costs a trip through Python's lock, so rows go in groups.

Few statements also keep the driver's cache of prepared ones: it makes room for every one that is put back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import apsw

GROUP = 16
"""Rows per statement; measured on events: 16 take 30 % less time than one by one, more gain nothing."""


class InGroups:
    """A statement with `VALUES (…)`, as it is for a group of rows, and as it is for one."""

    def __init__(self, sql: str, *, single: str | None = None) -> None:
        match = re.search(r"VALUES\s*\(([^()]*)\)", sql)
        if match is None:
            raise ValueError(f"not a statement with values: {sql}")
        row = "(" + ", ".join("?" * len(match[1].split(","))) + ")"
        before, after = sql[: match.start()], sql[match.end() :]
        self._single = single or f"{before}VALUES {row}{after}"
        self.grouped = f"{before}VALUES {', '.join([row] * GROUP)}{after}"

    def run(self, connection: apsw.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write all of them."""
        grouped = len(rows) - len(rows) % GROUP
        for start in range(0, grouped, GROUP):
            connection.execute(self.grouped, tuple(chain.from_iterable(rows[start : start + GROUP])))
        if grouped < len(rows):
            connection.executemany(self._single, rows[grouped:])
