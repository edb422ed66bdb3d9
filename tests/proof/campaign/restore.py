"""Restores: an installation is lost, and an earlier copy of its store takes its place.

The outside world keeps what was done to it after the copy was made; the copy does not know of that. A person
declares the restore, as `endwell restored` does, before any worker starts.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from endwell.model.commands import MarkRestored
from endwell.testing.captured_log import capture_log
from endwell.testing.cluster import ClusterMember
from endwell.testing.faults import all as all_faults
from endwell.testing.installation import installation_for
from endwell.testing.occasions import PlannedFates
from endwell.testing.simulation import Simulation, SimulationResult

LISTS: Final = all_faults.LISTS
"""Importing them registers the faults of the lost installation."""
HOURS: Final = 0.8
ORDERS: Final = 30
FAULT_COUNT: Final = 8
COPIED_AFTER_SECONDS: Final = 900.0
LOST_AFTER_SECONDS: Final = 1500.0
OTHER_SEED: Final = 1_000_000
"""Added to the seed of the restored installation, so that its ids differ from those of the lost one."""


class LostInstallation(Simulation):
    """Runs until it is lost, with all its processes."""

    def run_until_lost(self, copy: Path) -> None:
        """Copy the store to `copy` on the way. Raises RuntimeError if the oracle finds a violation."""
        with capture_log(self.log):
            self.begin()
            try:
                self.cluster.run(COPIED_AFTER_SECONDS, lambda: self.is_broken)
                self.view.query_rows("VACUUM INTO ?", (str(copy),))
                self.cluster.run(LOST_AFTER_SECONDS - COPIED_AFTER_SECONDS, lambda: self.is_broken)
            finally:
                self.cluster.close()
                self.view.close()
        if self.is_broken:
            raise RuntimeError(f"seed {self.seed} broke before it was lost: {self.result().violations}")


class RestoredInstallation(Simulation):
    """Runs on with the copy, in the outside world of the lost installation; it gets no new orders."""

    def __init__(self, lost: LostInstallation, copy: Path, directory: Path) -> None:
        installation = msgspec.structs.replace(lost.installation, orders=())
        super().__init__(lost.seed + OTHER_SEED, directory, installation, ())
        self.cluster.scheduler.start_us = lost.cluster.scheduler.now_us
        self.outside = replace(lost.outside, fates=PlannedFates(self), on_change=self._note_change)
        self.is_declared = False
        shutil.copy(copy, self.cluster.path)

    def _keep_running(self) -> None:
        crew, desk = self.kept, {"desk": self.kept["desk"]} if "desk" in self.kept else {}
        self.kept = crew if self.is_declared else desk
        super()._keep_running()
        self.kept = crew

    async def _bring_people(self, member: ClusterMember) -> None:
        while not member.is_ready:
            await member.runtime.sleep(1)
        if not self.is_declared:
            await member.client.store.commit_one(
                MarkRestored(command_id=self.new_id(), namespace="default", actor="ada")
            )
            self.is_declared = True
        await super()._bring_people(member)


def lose_and_restore(seed: int, directory: Path) -> SimulationResult:
    """Run an installation until it is lost; return the verdict on the restored one."""
    for name in ("first", "second"):
        (directory / name).mkdir()
    installation = installation_for(seed, hours=HOURS, orders=ORDERS, queue="native", relay=False)
    lost = LostInstallation(seed, directory / "first", installation, FAULT_COUNT)
    lost.run_until_lost(directory / "copy.db")
    return RestoredInstallation(lost, directory / "copy.db", directory / "second").run()
