"""Pieces that are scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.campaign.driver import Piece
from tests.proof.campaign.nuts import is_script


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a piece does, instead of a real one: to be written by `says`."""
    path = tmp_path / "piece.py"
    monkeypatch.setattr(Piece, "argv", is_script(path))
    return path
