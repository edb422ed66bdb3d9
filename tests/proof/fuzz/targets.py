"""The list of all decoders."""

from __future__ import annotations

from pathlib import Path

from tests.proof.fuzz import of_cli, of_content, of_outside, of_settings, of_store, of_streams
from tests.proof.fuzz.campaign import Target


def all_targets(home: Path) -> list[Target]:
    """Make all targets; they keep their files in that directory."""
    (home / "store").mkdir()
    return [
        *of_content.TARGETS,
        *of_settings.targets(home),
        *of_outside.targets(),
        *of_streams.targets(),
        *of_store.targets(home / "store"),
        *of_cli.targets(home),
    ]
