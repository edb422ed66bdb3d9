"""How long a test waits for what must come: only a hang reaches it, however busy the machine is."""

from __future__ import annotations

import os
from typing import Final

PATIENCE_SECONDS: Final = float(os.environ.get("ENDWELL_TEST_PATIENCE", "600"))
"""Planted defects wait shorter: there a hang is what is expected."""
