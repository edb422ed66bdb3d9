"""The longest wait of a test: only a hang reaches it, however busy the machine is."""

from __future__ import annotations

import os
from typing import Final

PATIENCE_SECONDS: Final = float(os.environ.get("ENDWELL_TEST_PATIENCE", "600"))
"""Tests of planted defects wait less: there a hang is expected."""
