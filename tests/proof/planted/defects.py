"""The planted defects, read from the `.diff` files beside this module.

Each begins with `## name`, then `caught by` the smallest tests that fail with it. For each file of the
product follow `in FILE` and its lines: `- ` for removed, `+ ` for added, two blanks for unchanged lines. The
removed and unchanged lines together must occur in the file exactly once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.proof.planted.defect import Defect, Edit

_MARK: Final = "## "


def read_defects(text: str) -> list[Defect]:
    """Read the defects of one file."""
    return [_read(part) for part in f"\n{text}".split(f"\n{_MARK}")[1:]]


def _read(part: str) -> Defect:
    name, _, rest = part.partition("\n")
    caught_by, edits, on_postgres = list[str](), list[Edit](), False
    for line in rest.splitlines():
        if line.startswith("caught by "):
            caught_by.append(line.removeprefix("caught by "))
        elif line == "on PostgreSQL":
            on_postgres = True
        elif line.startswith("in "):
            edits.append(Edit(line.removeprefix("in "), "", ""))
        elif line:
            edits[-1] = _with_line(edits[-1], line)
    return Defect(name=name.strip(), edits=tuple(edits), caught_by=tuple(caught_by), on_postgres=on_postgres)


def _with_line(edit: Edit, line: str) -> Edit:
    sign, text = line[:2].strip(), line[2:] + "\n"
    if sign not in ("", "-", "+"):
        raise ValueError(f"neither -, + nor two blanks before: {line}")
    return Edit(edit.file, edit.old + text * (sign != "+"), edit.new + text * (sign != "-"))


_FILES: Final = sorted(Path(__file__).parent.glob("*.diff"))
DEFECTS: Final = tuple(defect for path in _FILES for defect in read_defects(path.read_text()))
