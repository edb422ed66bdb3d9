"""An installation is lost, and a copy of its store from some time before takes its place.

The world outside keeps what was done to it since the copy was made; the copy knows nothing of that. A person
declares the restore, as `endwell restored` does, before any worker starts.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from endwell.model.commands import MarkRestored
from endwell.testing.cluster import ClusterMember
from endwell.testing.faults import all as all_faults
from endwell.testing.installation import installation_for
from endwell.testing.log import overheard
from endwell.testing.occasions import PlannedFates
from endwell.testing.simulation import Simulation, SimulationResult

LISTS: Final = all_faults.LISTS
"""Importing them registers the faults of the first life."""
HOURS: Final = 0.8
ORDERS: Final = 30
FAULT_COUNT: Final = 8
COPIED_AFTER_SECONDS: Final = 900.0
LOST_AFTER_SECONDS: Final = 1500.0
OTHER_SEED: Final = 1_000_000
"""Added to the seed of the second life, so that its ids are not those of what was lost."""


class Lost(Simulation):
    """Lives until it is lost, with all its processes. `copy` is its store as it was before."""

    def live_and_be_lost(self, copy: Path) -> None:
        """Raises RuntimeError if the oracle found something wrong until then."""
        with overheard(self.log):
            self._open()
            try:
                self.cluster.run(COPIED_AFTER_SECONDS, self._is_broken)
                self.view.ask("VACUUM INTO ?", (str(copy),))
                self.cluster.run(LOST_AFTER_SECONDS - COPIED_AFTER_SECONDS, self._is_broken)
            finally:
                self.cluster.close()
                self.view.close()
        if self._is_broken():
            raise RuntimeError(f"seed {self.seed} broke before it was lost: {self._result().violations}")


class Restored(Simulation):
    """Lives on with the copy, in the world that the lost installation left behind; nothing new is ordered."""

    def __init__(self, lost: Lost, copy: Path, directory: Path) -> None:
        installation = msgspec.structs.replace(lost.installation, orders=())
        super().__init__(lost.seed + OTHER_SEED, directory, installation, ())
        self.cluster.scheduler.start_us = lost.cluster.scheduler.now_us
        self.outside = replace(lost.outside, fates=PlannedFates(self), noted=self._note_change)
        self.is_declared = False
        shutil.copy(copy, self.cluster.path)

    def _keep_all(self) -> None:
        crew, desk = self.kept, {"desk": self.kept["desk"]} if "desk" in self.kept else {}
        self.kept = crew if self.is_declared else desk
        super()._keep_all()
        self.kept = crew

    async def _people_at(self, member: ClusterMember) -> None:
        while not member.is_ready:
            await member.runtime.sleep(1)
        if not self.is_declared:
            await member.client.store.one(
                MarkRestored(command_id=self.new_id(), namespace="default", actor="ada")
            )
            self.is_declared = True
        await super()._people_at(member)


def lose_and_restore(seed: int, directory: Path) -> SimulationResult:
    """What became of the second life of one seed."""
    for name in ("first", "second"):
        (directory / name).mkdir()
    installation = installation_for(seed, hours=HOURS, orders=ORDERS, queue="native", relay=False)
    lost = Lost(seed, directory / "first", installation, FAULT_COUNT)
    lost.live_and_be_lost(directory / "copy.db")
    return Restored(lost, directory / "copy.db", directory / "second").run()
