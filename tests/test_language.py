"""Plain English is measured: these counts may only fall. `python -m tests.test_language` lowers limits."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COUNTS = Path(__file__).with_name("language.json")
CLEAR_NAMES = Path(__file__).with_name("clear_names.txt")
OBLIQUE = re.compile(
    r"\b(whoever|whatever|somebody|nobody|anew|of which|one that|so many|is told|goes on|sees to|seen to"
    r"|nevertheless|meanwhile|goodbye)\b",
    re.IGNORECASE,
)
"""Words that stand where a noun should: see CONTRIBUTING.md, Language."""
CLEAR = frozenset(CLEAR_NAMES.read_text(encoding="utf-8").split())
"""One-word names of functions that say enough: verbs of the field, and nouns that a class makes clear."""


def sources(room: str, suffix: str = ".py") -> Iterator[Path]:
    return (path for path in sorted((ROOT / room).rglob(f"*{suffix}")) if path != Path(__file__))


def class_names() -> Counter[str]:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in sources("src"))
    return Counter(
        node.name.lstrip("_") for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)
    )


def vague_names() -> Counter[str]:
    """Functions and methods of one word that is not on the list."""
    found: Counter[str] = Counter()
    for path in sources("src"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
                name = node.name.strip("_")
                if "_" not in name and name not in CLEAR:
                    found[name] += 1
    return found


def oblique_words(*rooms: tuple[str, str]) -> int:
    paths = (path for room, suffix in rooms for path in sources(room, suffix))
    return sum(len(OBLIQUE.findall(path.read_text(encoding="utf-8"))) for path in paths)


def counts() -> dict[str, int]:
    """What is measured."""
    return {
        "class names used twice": sum(count > 1 for count in class_names().values()),
        "functions with a vague one-word name": vague_names().total(),
        "oblique words in src": oblique_words(("src", ".py"), ("src", ".sql")),
        "oblique words in tests": oblique_words(("tests", ".py"), ("tests", ".diff")),
        "oblique words in docs": oblique_words(("docs", ".md")),
    }


ALLOWED: dict[str, int] = {} if __name__ == "__main__" else json.loads(COUNTS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("what", ALLOWED)
def test_the_language_does_not_get_worse(what: str) -> None:
    assert counts()[what] <= ALLOWED[what], f"{what}: more than before; see CONTRIBUTING.md, Language"


def test_every_count_has_a_limit() -> None:
    assert ALLOWED.keys() == counts().keys()


if __name__ == "__main__":
    COUNTS.write_text(json.dumps(counts(), indent=2) + "\n", encoding="utf-8")
