"""Show answers: JSON on stdout with --json, text otherwise; remarks go to stderr.

Text carries no control characters of its own to the terminal, and no password of a URL.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

from endwell.cli.base.options import Options
from endwell.model.content import printable_text
from endwell.settings.show import mask_url

_WORD = re.compile(r"[^\s'\"]+")
_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*://|\b(?:https?|wss?):).+", re.DOTALL | re.IGNORECASE)
# The id of something inside a turn, such as an approval, looks like user, password and host of a URL.
_ID_IN_TURN = re.compile(r"[0-9a-z]{26}\.[a-z]\.\d+:\([\d.]*\)(?!.*//)")


def show(options: Options, document: Any, text: Callable[[Any], str]) -> None:
    """Show the answer of a command: the document itself, or its text."""
    if options.json:
        write_json(document)
    else:
        write(text(document))


def write_json(document: Any, *, is_line: bool = False) -> None:
    """Write one JSON document, in ASCII only, which suits every terminal and encoding."""
    indent = 2 if sys.stdout.isatty() and not is_line else None
    sys.stdout.write(json.dumps(_without_secrets_in_error(document), indent=indent) + "\n")
    sys.stdout.flush()


def write(text: str) -> None:
    """Write lines of text to stdout."""
    _write_to(sys.stdout, printable_text(text, keep_lines=True))


def write_remark(text: str) -> None:
    """Write a remark to stderr, without secrets."""
    _write_to(sys.stderr, printable_text(without_secrets(text), keep_lines=True))


def _write_to(stream: Any, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def without_secrets(text: str) -> str:
    """The text with the passwords of all URLs in it masked."""
    return _WORD.sub(lambda found: _masked_word(found[0]), text) if "/" in text or "@" in text else text


def _masked_word(word: str) -> str:
    """A word without its password: a URL, even a mistyped one, if it names a user and a password."""
    if _ID_IN_TURN.match(word):
        return word
    if _URL.search(word):
        return _URL.sub(lambda found: mask_url(found[0]), word)
    before = word.rpartition("@")[0]
    return mask_url(word) if ":" in before or "//" in before else word


def _without_secrets_in_error(document: Any) -> Any:
    if not isinstance(document, dict) or set(document) != {"error"}:
        return document
    fields = document["error"].items()
    return {"error": {key: without_secrets(value) if value else value for key, value in fields}}


def one_line(value: Any) -> str:
    """A value in one line."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return printable_text(value)
    return printable_text(json.dumps(value, ensure_ascii=False))


def block(value: Any) -> str:
    """A JSON value in as many lines as it needs."""
    return printable_text(json.dumps(value, ensure_ascii=False, indent=2), keep_lines=True)


def pairs_text(items: dict[str, Any]) -> str:
    """Names and values, one per line."""
    width = max((len(name) for name in items), default=0)
    return "\n".join(f"{name:<{width}}  {one_line(value)}" for name, value in items.items())


def table_text(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str) -> str:
    """Rows under their headings; drawn by rich on a terminal, aligned elsewhere."""
    if not rows:
        return empty
    cells = [[one_line(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        return _draw_table(columns, cells)
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in (columns, *cells))
    return "\n".join(lines)


def page_text(columns: Sequence[str], *, empty: str) -> Callable[[dict[str, Any]], str]:
    """Makes the text of a page whose columns are fields of its items."""

    def page_as_text(page: dict[str, Any]) -> str:
        rows = [[_cell_value(item[column]) for column in columns] for item in page["items"]]
        return list_text(columns, rows, page["next"], empty=empty)

    return page_as_text


def _cell_value(value: Any) -> Any:
    return ", ".join(value) or None if isinstance(value, list) else value


def list_text(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], cursor: str | None, *, empty: str
) -> str:
    """A page of a list, and the option that asks for the next page, ready to be pasted into a shell."""
    text = table_text(columns, rows, empty=empty)
    return text if cursor is None else f"{text}\nmore: --cursor {shlex.quote(one_line(cursor))}"


def _draw_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(color_system=None)  # the output is escaped, colours would be too
    drawing = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        drawing.add_column(column, no_wrap=number == 0, overflow="fold")
    for row in cells:
        drawing.add_row(*map(Text, row))
    with console.capture() as captured:
        console.print(drawing)
    return captured.get().rstrip("\n")
