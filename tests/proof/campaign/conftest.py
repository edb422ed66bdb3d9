"""Lets scripts stand in for the pieces of a campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.campaign.driver import Piece
from tests.proof.campaign.nuts import run_script


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script that runs in place of a real piece; `write_script` writes it."""
    path = tmp_path / "piece.py"
    monkeypatch.setattr(Piece, "argv", run_script(path))
    return path
