"""The app: a variable of a module, so that another process finds it again."""

from __future__ import annotations

import json
import os
from pathlib import Path

from endwell import Endwell, SqliteEffectStore

ROOT = Path(__file__).parents[3]
ABOUT = json.loads(os.environ.get("OUTSIDE_APP", "{}"))

app = Endwell(
    ABOUT.get("url"),
    namespace=ABOUT.get("namespace", "default"),
    settings=ABOUT.get("settings"),
    effects=SqliteEffectStore(ABOUT["effects"]) if ABOUT.get("effects") else None,
)


def write(path: str, text: str) -> None:
    """It is never seen half written."""
    Path(f"{path}.new").write_text(text)
    Path(f"{path}.new").rename(path)


def called(path: str, name: str) -> str:
    """Leaves a line in a file for every call."""
    with Path(path).open("a") as file:
        file.write(f"{name} {os.getpid()}\n")
    return name.upper()
