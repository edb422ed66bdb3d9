"""Every example of docs/testing.md is run by pytest, as a reader would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "testing.md"


def test_the_examples_of_the_page_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_every_fault_that_the_page_names_exists() -> None:
    from endwell.testing import ScriptedTool, World

    text = PAGE.read_text()
    for name in re.findall(r"`(?:await )?world\.(\w+)\(", text):
        assert hasattr(World, name), name
    for name in ("returns", "fails", "answers_twice", "never_answers"):
        assert hasattr(ScriptedTool, name)
